"""The packages that are installed: where they lie, and how it is known that nothing in them has changed."""
