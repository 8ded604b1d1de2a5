"""Kernels on a GPU, against its own copy bandwidth in the same run: `python -m benchmarks.gpu`."""

QUESTIONS = ("optimizers", "quantizer", "rows", "first_launch")
"""The modules of this package that measure; each has run(gpu), which gives timing.Figure, one after the other."""
ROWS = ("layer_norm", "rms_norm", "softmax", "gelu", "swiglu", "quantisation")
"""What `rows` consists of: `rows.softmax` is that part alone."""
