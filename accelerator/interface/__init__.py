"""The accelerator interface: one file for each subject."""
