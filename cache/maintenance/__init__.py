"""Garbage collection, limits, listing, verification."""
