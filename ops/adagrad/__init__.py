"""Adagrad: the optimizer whose steps run on the host."""
