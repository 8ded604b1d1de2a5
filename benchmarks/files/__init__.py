"""Benchmarks of the ops that move tensors to and from files."""
