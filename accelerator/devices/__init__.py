"""opforge's accelerators: one file for each."""
