"""A project's kernels: its requirements, and the lock file with the chosen releases."""

LOCK_FILE = "opforge.lock"
