"""An op whose compiler can be stopped and released: its source includes a pipe."""

from __future__ import annotations

import os
from typing import Any

from support.sample_ops import EXPORT
from support.text_files import write

SOURCE = f"""\
#include "value.h"
#include "gate.h"
{EXPORT} int value() {{ return VALUE; }}
"""
"""A source whose compiler waits while the gate is closed, without using the processor."""


def close_gate(folder: Any) -> None:
    """Makes compilers of SOURCE wait in `#include "gate.h"`, a pipe that nobody writes to."""
    path = os.path.join(str(folder), "gate.h")
    if os.path.lexists(path):
        os.unlink(path)
    os.mkfifo(path)


def open_gate(folder: Any, text: str = "// open\n") -> None:
    """Releases the compilers that wait; later ones do not wait."""
    path = os.path.join(str(folder), "gate.h")
    # Open for both ends: a compiler that opens the pipe now finds a writer. The rename then replaces the pipe by a file
    # in one step, for compilers that come later.
    handle = os.open(path, os.O_RDWR)
    os.replace(write(folder, "gate.h.new", text), path)
    os.write(handle, text.encode())
    os.close(handle)
