"""Which variant of a package fits a machine best."""
