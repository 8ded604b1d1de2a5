"""Which cores and which memory each rank of a host gets."""
