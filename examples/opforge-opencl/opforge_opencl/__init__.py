"""OpenCL devices for opforge. opforge finds the installed package by its entry point: see pyproject.toml."""
