"""One builder an op."""
