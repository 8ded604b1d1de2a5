"""Measures ops against their rivals and a ceiling: `opforge bench`, and what `make bench` shares with it."""
