"""What a large store costs: hits and garbage collection."""
