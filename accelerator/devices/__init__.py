"""The accelerators that opforge knows: one file for each."""
