"""A parsed module: its tree, its positions, and the variables that its names refer to."""
