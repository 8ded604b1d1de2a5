"""The declaration of an op, before a compiler is chosen: values only."""
