"""Which cores, memory nodes and devices each rank is bound to."""
