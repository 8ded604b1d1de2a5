"""Loads packages into the process."""
