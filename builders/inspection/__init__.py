"""What is inside a built file: host code, device code by architecture and kernel, requirements."""
