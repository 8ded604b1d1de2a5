"""Triton's interpreter for tests. Two of its faults are mended here, see `mend`.

Import this module at the top of a test file, before anything else imports Triton: Triton decides at its first import
whether its own functions are interpreted.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

INTERPRET = "TRITON_INTERPRET"
AVAILABLE = importlib.util.find_spec("triton") is not None
if AVAILABLE and "triton" not in sys.modules:  # set for the import only: other tests may use Triton compiled
    os.environ[INTERPRET] = "1"
    try:
        importlib.import_module("triton.language")
    finally:
        del os.environ[INTERPRET]


@contextlib.contextmanager
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loads opforge's Triton ops again and interprets them, within this context. Undo `monkeypatch` after it.

    Skips the test without Triton, and fails it if Triton cannot interpret: otherwise a hundred tests would be skipped
    because of one import in another file.
    """
    if not AVAILABLE:
        pytest.skip("pip install triton")
    import triton.language.standard

    from opforge.ops.triton import registry

    if not type(triton.language.standard.zeros).__name__.startswith("Interpreted"):
        pytest.fail(
            "Triton was imported as a compiler before this file was collected: no test file may import it at its top,"
            " and nothing that imports torch._dynamo or torch._inductor"
        )
    monkeypatch.setenv(INTERPRET, "1")
    mend(monkeypatch)
    registry.reset()
    yield
    registry.reset()


def mend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes Triton's interpreter do what its compiler does.

    - float32 is rounded to bfloat16, as by the hardware, and not truncated.
    - A comparison of two numbers that is made as wide as a mask stays a bool. It becomes an integer in the
      interpreter, whose loads and stores refuse such masks from Triton 3.9 on.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter.InterpreterBuilder.cast_impl
    widen = interpreter.InterpreterBuilder.create_splat

    def cast(builder: Any, source: Any, target: Any) -> Any:
        pair = (source.dtype.scalar, target.scalar)
        if pair == (tl.bfloat16, tl.float32):
            data = (source.data.astype(np.uint32) << 16).view(np.float32)
        elif pair == (tl.float32, tl.bfloat16):
            bits = source.data.view(np.uint32)
            nearest = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)
            data = np.where(np.isnan(source.data), np.uint16(0x7FC0), nearest)
        else:
            return convert(builder, source, target)
        return interpreter.TensorHandle(data, target.scalar)

    def splat(builder: Any, block: Any, number: Any) -> Any:
        wide = widen(builder, block, number)
        return interpreter.TensorHandle(wide.data.astype(bool), tl.int1) if number.data.dtype == bool else wide

    monkeypatch.setattr(interpreter.InterpreterBuilder, "cast_impl", cast)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_splat", splat)
