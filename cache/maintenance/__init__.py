"""Garbage collection, limits, listings, verification."""
