"""Triton's interpreter for tests, with bfloat16 put right: it cuts what the hardware rounds to the nearest.

Import this at the top of a test file: Triton decides when it is first imported whether it interprets.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

import pytest

INTERPRET = "TRITON_INTERPRET"
AVAILABLE = importlib.util.find_spec("triton") is not None
if AVAILABLE and "triton" not in sys.modules:  # other tests may use it compiled after this
    os.environ[INTERPRET] = "1"
    try:
        importlib.import_module("triton.language")
    finally:
        del os.environ[INTERPRET]


def start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the patch is undone, opforge's Triton ops are interpreted, each loaded anew."""
    if not AVAILABLE:
        pytest.skip("pip install triton")
    import triton.language.standard

    from opforge.ops.triton import registry

    if not type(triton.language.standard.zeros).__name__.startswith("Interpreted"):
        pytest.skip(
            "triton was imported before this file, not to be interpreted; run this file in a process of its own"
        )
    monkeypatch.setenv(INTERPRET, "1")
    monkeypatch.setattr(registry, "_bound", {})
    round_bfloat16(monkeypatch)


def round_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions between float32 and bfloat16 as the hardware makes them."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter.InterpreterBuilder.cast_impl

    def cast(builder: Any, source: Any, wanted: Any) -> Any:
        pair = (source.dtype.scalar, wanted.scalar)
        if pair == (tl.bfloat16, tl.float32):
            data = (source.data.astype(np.uint32) << 16).view(np.float32)
        elif pair == (tl.float32, tl.bfloat16):
            bits = source.data.view(np.uint32)
            nearest = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)
            data = np.where(np.isnan(source.data), np.uint16(0x7FC0), nearest)
        else:
            return convert(builder, source, wanted)
        return interpreter.TensorHandle(data, wanted.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "cast_impl", cast)
