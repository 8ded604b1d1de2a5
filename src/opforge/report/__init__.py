"""What `opforge report` shows: the parts of this machine, and the state of each."""
