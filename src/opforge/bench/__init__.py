"""Measures ops against their rivals and a baseline: `opforge bench`, and what `make bench` shares with it."""
