"""What it costs to load an op, and to import opforge."""
