"""What is on this machine and what state it is in: the facts behind `opforge report`."""
