"""How far a result may be from the reference in float64: the default, and what a case states in its field `tolerance`.

The cases are in `ops/cases`. A case's own function of errors is applied by `comparison.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from opforge.ops.cases.case import Case

UNITS_IN_THE_LAST_PLACE = 4.0
"""The error that each result may have, relative to its value, in units of its dtype, unless its case wants it exact."""
UNITS_OF_16_BITS = 1.0
"""The same for dtypes of 16 bits, whose ops compute in float32 and round once."""
SHARE_OF_LARGEST = 0.25
"""The share of it that each result may have relative to the largest expected value: where a sum cancels."""


def units_of(dtype: torch.dtype) -> float:
    """Returns the error that a result of a dtype may have, in units of its last place."""
    return UNITS_OF_16_BITS if dtype.itemsize == 2 else UNITS_IN_THE_LAST_PLACE


def bounds(case: Case, dtype: torch.dtype, exact: Tensor) -> tuple[float, float]:
    """Returns the relative and the absolute error that a case allows for a result of a dtype: (0, 0) if it is exact.

    The absolute one is in proportion to the largest expected value: results that are all small may not be 0.
    """
    tolerance = tolerance_of(case, dtype)
    if tolerance == 0:
        return 0.0, 0.0
    sizes = exact.detach().abs()
    sizes = sizes[sizes.isfinite()]
    largest, info = float(sizes.max()) if sizes.numel() else 0.0, torch.finfo(dtype)
    floor = units_of(dtype) * info.eps
    absolute = max(SHARE_OF_LARGEST * floor * largest, info.smallest_normal * info.eps)
    if tolerance is None:
        return floor, absolute
    return max(floor, tolerance), max(absolute, tolerance * min(1.0, largest))


def tolerance_of(case: Case, dtype: torch.dtype) -> float | None:
    """Returns the number of a case's tolerance for the results of a dtype. None if it has none."""
    if isinstance(case.tolerance, Mapping):
        return case.tolerance.get(str(dtype).removeprefix("torch."))
    return None if callable(case.tolerance) else case.tolerance
