"""The records of the store, one file for each format."""
