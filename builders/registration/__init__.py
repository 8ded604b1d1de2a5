"""The kernels that a library registers: whether their ops exist, and whether their types fit the ops' schemas."""
