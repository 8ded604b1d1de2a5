"""What is known of an op before a compiler is chosen: values only."""
