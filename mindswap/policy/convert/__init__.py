"""One form of a configuration in another."""
