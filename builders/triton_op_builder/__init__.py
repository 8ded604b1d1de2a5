"""`TritonOpBuilder`, how its kernels are declared, and how they are launched."""
