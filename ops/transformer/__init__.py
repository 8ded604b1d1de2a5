"""Ops for transformers and diffusion models on the host, with DeepSpeed's function names."""
