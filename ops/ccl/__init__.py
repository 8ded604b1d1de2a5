"""DeepSpeed's functions over oneCCL, for `CCLCommBuilder`."""
