"""What the store writes down, one file for each format."""
