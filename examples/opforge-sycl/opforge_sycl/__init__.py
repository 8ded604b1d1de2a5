"""Ops in SYCL for Intel's devices. Installed, they are found by their entry points: see pyproject.toml."""
