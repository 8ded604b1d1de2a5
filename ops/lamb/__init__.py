"""LAMB: the fused optimizer."""
