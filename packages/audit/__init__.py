"""Checks of a package before it is shipped: of its library and of its Python code."""
