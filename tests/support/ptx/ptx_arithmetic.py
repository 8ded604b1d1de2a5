"""The arithmetic of PTX on numpy arrays with one element per thread, for ptx_machine.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

TYPES = {
    **{f"{kind}{bits}": np.dtype(f"u{bits // 8}") for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    "f16": np.dtype("f2"),
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
    "pred": np.dtype("?"),
}


def constant(text: str, dtype: np.dtype[Any]) -> Any:
    """Returns a constant of PTX, such as 0f3F800000 or -1, as a value of this type."""
    text = text.removesuffix("U")
    if text[:2] in ("0f", "0d"):
        bits = np.array(int(text[2:], 16), np.uint32 if text[1] == "f" else np.uint64)
        return bits.view(dtype) if bits.itemsize == dtype.itemsize else bits.view("f4" if text[1] == "f" else "f8")
    number = int(text, 0) & (1 << 8 * dtype.itemsize) - 1
    return np.array(number, f"u{dtype.itemsize}").view(dtype)


def flushed(value: Any) -> Any:
    """Returns float32 values with subnormal ones replaced by zero."""
    small = np.abs(value) < np.finfo(np.float32).tiny
    return np.where(small, np.copysign(np.float32(0), value), value)


def narrow(value: Any, to: str) -> Any:
    """Returns float32 values as the bits of float16 or bfloat16, rounded to the nearest, halves to even."""
    if to == "f16":
        return np.asarray(value).astype(np.float16).view(np.uint16)
    bits = np.asarray(value).view(np.uint32)
    nearest = (bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    return np.where(np.isnan(value), 0x7FFF, nearest).astype(np.uint16)


def widened(bits: Any, kind: str) -> Any:
    """Returns the float32 values of two float16 or bfloat16 numbers in each word, [..., 2]."""
    bits = np.asarray(bits).astype(np.uint32)
    halves = np.stack([bits & np.uint32(0xFFFF), bits >> np.uint32(16)], -1)
    if kind == "bf16":
        return (halves << np.uint32(16)).view(np.float32)
    return halves.astype(np.uint16).view(np.float16).astype(np.float32)


def _multiply(op: tuple[str, ...], a: Any, b: Any) -> Any:
    if "wide" in op:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
        return a.astype(wide) * np.asarray(b).astype(wide)
    assert "lo" in op or a.dtype.kind == "f", op
    return a * b


def _divide(op: tuple[str, ...], a: Any, b: Any) -> Any:
    if a.dtype.kind == "f" or np.asarray(b).dtype.kind == "f":
        huge = (np.abs(b) > 2.0**126) & np.isfinite(b)
        return np.where(huge, a * np.float32(0), a / b) if "approx" in op else a / b
    quotient = a // np.where(b == 0, 1, b)
    return quotient + ((a % np.where(b == 0, 1, b) != 0) & ((a < 0) != (b < 0)))  # rounded towards zero


def _remainder(op: tuple[str, ...], a: Any, b: Any) -> Any:
    return a - _divide(op, a, b) * b


def _fuse(op: tuple[str, ...], a: Any, b: Any, c: Any) -> Any:
    if a.dtype.kind != "f" and np.asarray(b).dtype.kind != "f":
        return _multiply(op, a, b) + c
    return (np.asarray(a, np.float64) * np.asarray(b, np.float64) + c).astype(np.asarray(a).dtype)


def _extreme(drop: Any, keep: Any) -> Callable[..., Any]:
    return lambda op, a, b: (keep if "NaN" in op or np.asarray(a).dtype.kind != "f" else drop)(a, b)


def _shift_left(op: tuple[str, ...], a: Any, b: Any) -> Any:
    bits = 8 * a.itemsize
    return np.where(b < bits, a << np.minimum(b, bits - 1).astype(a.dtype), a.dtype.type(0))


def _shift_right(op: tuple[str, ...], a: Any, b: Any) -> Any:
    return a >> np.minimum(np.asarray(b).view(f"u{a.itemsize}"), 8 * a.itemsize - 1).astype(a.dtype)


def _field(op: tuple[str, ...], a: Any, position: Any, length: Any) -> Any:
    bits = 8 * a.itemsize
    up = a.dtype.type(bits - int(position) - int(length))
    return (a << up) >> a.dtype.type(bits - int(length))


def _permute(op: tuple[str, ...], a: Any, b: Any, selector: Any) -> Any:
    both = np.asarray(a).astype(np.uint64) | np.asarray(b).astype(np.uint64) << np.uint64(32)
    chosen = np.zeros_like(both)
    for byte in range(4):
        nibble = np.asarray(selector).astype(np.uint64) >> np.uint64(4 * byte) & np.uint64(15)
        picked = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(0xFF)
        sign = np.where(picked & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
        chosen |= np.where(nibble & np.uint64(8), sign, picked) << np.uint64(8 * byte)
    return chosen.astype(np.uint32)


COMPARISONS: dict[str, Any] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": lambda a, b: (a != b) & (a == a) & (b == b),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    # Those that a NaN makes true.
    "ltu": lambda a, b: ~np.greater_equal(a, b),
    "leu": lambda a, b: ~np.greater(a, b),
    "gtu": lambda a, b: ~np.less_equal(a, b),
    "geu": lambda a, b: ~np.less(a, b),
    "neu": np.not_equal,
}
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda op, a, b: a + b,
    "sub": lambda op, a, b: a - b,
    "mul": _multiply,
    "fma": _fuse,
    "div": _divide,
    "rem": _remainder,
    "min": _extreme(np.fmin, np.minimum),
    "max": _extreme(np.fmax, np.maximum),
    "abs": lambda op, a: np.abs(a),
    "neg": lambda op, a: -a,
    "sqrt": lambda op, a: np.sqrt(a),
    "ex2": lambda op, a: np.exp2(np.asarray(a, np.float64)).astype(np.float32),
    "and": lambda op, a, b: a & b,
    "or": lambda op, a, b: a | b,
    "xor": lambda op, a, b: a ^ b,
    "not": lambda op, a: ~a,
    "popc": lambda op, a: np.bitwise_count(np.asarray(a)).astype(np.uint32),
    "mad": _fuse,
    "shl": _shift_left,
    "shr": _shift_right,
    "bfe": _field,
    "prmt": _permute,
}
