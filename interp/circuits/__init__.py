"""Circuits as values: selection, files, discovery, evaluation, and circuits that are known."""
