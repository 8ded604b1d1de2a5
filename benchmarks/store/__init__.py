"""What a large store costs: hits, finding, listing, and garbage collection."""
