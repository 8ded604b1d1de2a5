"""Attention over pages, experts and tokens of ragged batches."""
