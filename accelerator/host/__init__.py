"""The host as the operating system reports it: processors, memory and cgroups."""
