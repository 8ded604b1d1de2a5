"""The optimizers: classes for the host and for GPUs."""
