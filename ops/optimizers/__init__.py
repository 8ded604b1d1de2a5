"""Torch optimizers, for the CPU and for GPUs."""
