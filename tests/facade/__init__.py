"""What shows that the facade computes what torch's own headers compute: `python tests/facade --help`."""
