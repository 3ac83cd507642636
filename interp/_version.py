"""The one place for the version (SemVer 0.x)."""

__version__ = "0.1.0"
