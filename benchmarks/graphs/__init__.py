"""What compiled graphs of torch.compile cost when they are made, found and fetched."""
