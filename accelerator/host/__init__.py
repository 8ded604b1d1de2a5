"""What the operating system reports about the host: processors, memory, cgroups."""
