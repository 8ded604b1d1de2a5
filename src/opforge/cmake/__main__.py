"""Prints the folder that CMake finds opforge in."""

import os

print(os.path.dirname(os.path.abspath(__file__)))  # noqa: T201
