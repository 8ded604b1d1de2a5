"""The commands below `opforge cache`."""
