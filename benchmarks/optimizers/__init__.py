"""Accuracy of the optimizers on the host."""
