"""One builder for each op."""
