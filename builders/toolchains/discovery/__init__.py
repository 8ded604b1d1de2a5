"""Finds compilers on this machine and identifies them: their programs, their reports, their configuration files."""
