"""`python -m opforge.compat.cpp_extension SCRIPT [ARGUMENT ...]`: runs a script, or `-m MODULE`, after `install()`."""

from __future__ import annotations

import os
import runpy
import sys

from opforge.compat.cpp_extension import install


def main(arguments: list[str]) -> None:
    """Runs the script as Python would. Raises SystemExit with the usage if no script is named."""
    script = arguments[1:] if arguments[:1] == ["-m"] else arguments
    if not script:
        raise SystemExit("usage: python -m opforge.compat.cpp_extension {SCRIPT | -m MODULE} [ARGUMENT ...]")
    install()
    sys.argv = script
    if arguments[0] == "-m":
        runpy.run_module(script[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(script[0]))
        runpy.run_path(script[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
