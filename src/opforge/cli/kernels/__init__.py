"""The commands about kernel packages."""
