"""Which functions of CPython a library may use: those of the limited API of Python 3.9, which every later one has.

On the facade of torch's headers it is that of 3.10, the oldest Python of torch 2.10.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from functools import cache

from opforge.builders.declaration.machine import python_include
from opforge.foundation import exit_status

OLDEST, OLDEST_ON_FACADE = (3, 9), (3, 10)
PREFIXES = ("Py", "_Py")
TIMEOUT = 60.0
HEADERS = b"#include <pyconfig.h>\n#undef Py_GIL_DISABLED\n#include <Python.h>\n"
"""A free-threaded Python refuses the limited API, which the wheels of others use."""


def problems(undefined: Sequence[str], version: tuple[int, int] = OLDEST) -> list[str]:
    """Returns why a library that leaves these names undefined does not load in every Python; one line, or none."""
    names = sorted(name for name in undefined if name.startswith(PREFIXES))
    if not names:
        return []
    oldest = ".".join(map(str, version))
    allowed = limited_api(*version)
    if not allowed:
        return [f"it uses functions of Python ({names[0]}), and there are no Python headers here to check them with"]
    others = [name for name in names if name not in allowed]
    if not others:
        return []
    return [f"it uses functions of Python outside the stable ABI of {oldest}: {', '.join(others[:8])}"]


@cache
def limited_api(major: int, minor: int) -> frozenset[str]:
    """Returns the names that Python.h declares for the limited API of a version; empty without headers or compiler.

    The headers of the Python that runs are preprocessed: they know the limited API of every version before them.
    """
    folder = python_include()
    if not os.path.exists(os.path.join(folder, "Python.h")):
        return frozenset()
    define = f"-DPy_LIMITED_API=0x{major:02x}{minor:02x}0000"
    command = [os.environ.get("CC") or "cc", "-E", "-P", "-xc", define, f"-I{folder}", "-"]
    try:
        done = exit_status.run(command, TIMEOUT, input=HEADERS, capture_output=True)
        done.check_returncode()
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    return frozenset(re.findall(r"\b_?Py\w+", done.stdout.decode(errors="replace")))
