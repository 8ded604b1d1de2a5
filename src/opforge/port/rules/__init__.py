"""The rewriting rules: one file for each kind of construct."""
