"""Result tables: schemas, typed frames, atomic cells on disk, comparison and export. Imports no torch."""
