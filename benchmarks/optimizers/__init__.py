"""Speed and accuracy of the optimizers on the host."""
