"""See tests/conftest.py."""
