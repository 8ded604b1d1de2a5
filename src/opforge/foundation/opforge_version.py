"""The version of opforge, in a module that imports nothing."""

VERSION = "0.1.0rc1"
"""pyproject.toml states it too; a test compares them."""
