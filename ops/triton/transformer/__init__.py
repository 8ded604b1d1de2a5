"""DeepSpeed's smaller ops for transformers, over kernels for GPUs."""
