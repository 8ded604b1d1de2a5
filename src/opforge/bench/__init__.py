"""Measures ops against their rivals and a reference: `opforge bench`, and what `make bench` shares with it."""
