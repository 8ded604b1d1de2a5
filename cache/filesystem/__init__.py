"""Disk access, locks, file ownership."""
