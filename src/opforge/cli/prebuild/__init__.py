"""The command `build-ops`."""
