"""What kernel packages cost: loading one that is installed, and installing one."""
