"""The builders of the host's ops for transformers."""
