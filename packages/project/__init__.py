"""A project's kernels: what it requires, and the lock file that says what was chosen."""

LOCK_FILE = "opforge.lock"
