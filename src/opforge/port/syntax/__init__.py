"""A parsed module: its tree, its positions, and what its names refer to."""
