"""The text that Python shows for ops and builders. No load imports this module."""
