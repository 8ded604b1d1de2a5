"""Finds compilers on this machine and identifies them: their programs, what they report, their configuration files."""
