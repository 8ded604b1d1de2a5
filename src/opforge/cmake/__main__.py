"""Prints the folder that CMake finds opforge in."""

import os
import sys

sys.stdout.write(f"{os.path.dirname(os.path.abspath(__file__))}\n")
