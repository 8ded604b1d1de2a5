"""The fused optimizers on Triton: the table of tensors that a launch reads, and the functions of each rule."""
