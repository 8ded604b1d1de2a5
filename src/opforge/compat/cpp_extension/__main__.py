"""`python -m opforge.compat.cpp_extension SCRIPT [ARGUMENT ...]`: runs a script, or `-m MODULE`, after `install()`."""

from __future__ import annotations

import os
import runpy
import sys

from opforge.compat.cpp_extension import install


def main(arguments: list[str]) -> None:
    """Run the script as Python would. SystemExit with the usage where none is named."""
    named = arguments[1:] if arguments[:1] == ["-m"] else arguments
    if not named:
        raise SystemExit("usage: python -m opforge.compat.cpp_extension {SCRIPT | -m MODULE} [ARGUMENT ...]")
    install()
    sys.argv = named
    if arguments[0] == "-m":
        runpy.run_module(named[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(named[0]))
        runpy.run_path(named[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
