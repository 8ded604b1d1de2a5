"""`pytest benchmarks`: the cases of `opforge bench --quick` through pytest-benchmark, for its own tables and files.

Each contender is a test, and the contenders of a case are a group. They do not take turns: compare ratios of
`opforge bench` rather than times of these tests.
"""

from __future__ import annotations

from typing import Any

import pytest

from opforge.bench.measure import make_place
from opforge.bench.selection import Selected, points, select
from opforge.ops.cases import MissingError, Seconds

SECONDS = 0.2
"""Of all samples of a test."""


def _parameters() -> list[Any]:
    return [
        pytest.param(item, size, dtype, name, id=f"{item.op}-{item.case.name}-{size}-{name}")
        for item, size, dtype in points(select(()), "cpu", quick=True)
        for name in item.case.contenders
    ]


@pytest.mark.benchmark(max_time=SECONDS, min_rounds=5)
@pytest.mark.parametrize(("item", "size", "dtype", "name"), _parameters())
def test_a_case(benchmark: Any, item: Selected, size: int, dtype: str, name: str) -> None:
    case = item.case
    with make_place(size, dtype, "cpu", quick=True) as place:
        try:
            call = case.contenders[name](case.prepare(place, item.load("cpu")))
        except MissingError as error:
            pytest.skip(str(error))
        if isinstance(call(), Seconds):
            pytest.skip("it measures itself: see `opforge bench`")
        benchmark.group = f"{item.op}: {case.name}, {size} {case.size_unit}, {dtype}"
        benchmark.extra_info["amount"] = case.amount(size, place.torch_dtype().itemsize)
        benchmark(call)
