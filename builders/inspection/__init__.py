"""Reads built files: their host code, their device code by architecture and kernel, and their requirements."""
