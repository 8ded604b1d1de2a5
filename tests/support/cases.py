"""The cases of an op, for another library than its contract loads: a level of the CPU, or the GPU's own source."""

from __future__ import annotations

from opforge.testing import OpContract


def check_results(builder, op, short=False):
    """Compares the results of an op with the references of a builder's cases, for each shape and dtype, or for few."""
    type(
        "Results", (OpContract,), {"builder": builder, "loaded": op, "short": short}
    )().test_results_agree_with_float64()
