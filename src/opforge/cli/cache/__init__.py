"""The commands of `opforge cache`."""
