"""Sizes and durations, as settings and options write them."""

from __future__ import annotations

import math
import re

SIZES = {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
SIZES |= {f"{unit}IB": SIZES[unit] for unit in "KMGT"}
SIZES |= {f"{unit}B": 1000**power for power, unit in enumerate("KMGT", start=1)}
AGES = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
SIZE_EXPECTED = "a number with B, KiB, MB or the like, such as 2GiB"
AGE_EXPECTED = "a number with s, min, h, d or w, such as 30d"


def parse_size(text: str) -> int:
    """Returns bytes: 2GiB, 500MB (thousands), 1.5G (as GiB), 1048576. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in SIZES:
        raise ValueError(f"{text!r} is not a size: expected {SIZE_EXPECTED}")
    return int(_finite(text, float(match[1]) * SIZES[match[2].upper()], SIZE_EXPECTED))


def parse_age(text: str) -> float:
    """Returns seconds: 30d, 12h, 90min, 45s, 2w. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if not match or match[2] not in AGES:
        raise ValueError(f"{text!r} is not an age: expected {AGE_EXPECTED}")
    return _finite(text, float(match[1]) * AGES[match[2]], AGE_EXPECTED)


def _finite(text: str, number: float, expected: str) -> float:
    if math.isinf(number):
        raise ValueError(f"{text!r} is too large: expected {expected}")
    return number
