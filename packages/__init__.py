"""Kernel packages: a compiled op with its Python, under a name and a version."""
