"""The content of `opforge report`: the parts of this machine, and the state of each."""
