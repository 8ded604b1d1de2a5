"""Kernels on a GPU, against its own copy bandwidth in the same run: `python -m benchmarks.gpu`."""

QUESTIONS = ("optimizers", "quantizer", "rows", "first_launch")
"""The modules of this package that measure; each has run(gpu) -> timing.Figure, several."""
