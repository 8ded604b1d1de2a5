"""`python -m opforge` runs the command `opforge`."""

from __future__ import annotations

from opforge.cli import main

if __name__ == "__main__":
    main()
