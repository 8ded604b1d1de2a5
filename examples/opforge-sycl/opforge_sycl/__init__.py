"""SYCL ops for Intel's devices. opforge finds the installed package by its entry points: see pyproject.toml."""
