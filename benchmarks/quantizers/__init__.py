"""Speed of the quantizers on the host."""
