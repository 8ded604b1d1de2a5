"""What Python shows of ops and builders. No load imports it."""
