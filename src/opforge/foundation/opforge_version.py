"""The version of this opforge, for whoever needs no more than that."""

VERSION = "0.1.0rc1"
"""pyproject.toml states the same."""
