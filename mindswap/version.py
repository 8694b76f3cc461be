"""The version of the package, which reports print."""

__version__ = "0.1.0"
