"""Runs a build plan, records every file that was read, publishes the result."""
