"""The version of opforge, stated here alone. The module imports nothing."""

VERSION = "0.1.0rc1"
"""A literal: setuptools reads it from this file, without an import, for the metadata of a distribution."""
