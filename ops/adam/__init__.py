"""Adam: the optimizer on the host, and the fused one."""
