"""The accelerator interface: one file for each group of methods."""
