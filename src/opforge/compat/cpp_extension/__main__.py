"""`python -m opforge.compat.cpp_extension SCRIPT [ARGUMENT ...]`: runs a script, or `-m MODULE`, after `install()`."""

from __future__ import annotations

import os
import runpy
import sys

from opforge.compat.cpp_extension import install

USAGE = "usage: python -m opforge.compat.cpp_extension {SCRIPT | -m MODULE} [ARGUMENT ...]"


def main(arguments: list[str]) -> None:
    """Runs the script as Python would. Raises SystemExit with the usage if there is no such script."""
    is_module = arguments[:1] == ["-m"]
    script = arguments[1:] if is_module else arguments
    if not script or script[0] in ("-h", "--help"):
        raise SystemExit(USAGE)
    if not is_module and not os.path.exists(script[0]):
        raise SystemExit(f"error: there is no file {script[0]!r} in {os.getcwd()}\n{USAGE}")
    install()
    sys.argv = script
    if is_module:
        runpy.run_module(script[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(script[0]))
        runpy.run_path(script[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
