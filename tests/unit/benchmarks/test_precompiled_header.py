"""The benchmark of precompiled headers: the commands that it changes, and from where on a header pays."""

from __future__ import annotations

import pytest

from opforge.builders.declaration.build_plan import Step
from opforge.cache.records.inputs import RootedPath


def compilation(number):
    argv = ("g++", "-O3", "-MD", "-MF", f"{number}.o.d", "-c", f"/op/{number}.cpp", "-o", f"{number}.o")
    title, unit = f"compile {number}.cpp", RootedPath("own", f"{number}.cpp")
    return Step(f"{number}.o", (f"/op/{number}.cpp",), argv, title, f"{number}.o.d", unit)


def test_each_unit_waits_for_the_precompiled_header_and_includes_it_before_its_source():
    from benchmarks.building.precompiled_header import precompiled

    making, using = precompiled([compilation(0), compilation(1)], "/op/all.h")
    assert making.argv == ("g++", "-O3", "-x", "c++-header", "/op/all.h", "-o", "used.h.gch")
    assert using[1].inputs == ("/op/1.cpp", "used.h.gch")
    assert using[1].argv[:5] == ("g++", "-O3", "-Winvalid-pch", "-include", "used.h")
    assert using[1].argv[5:] == compilation(1).argv[2:]


@pytest.mark.parametrize(
    ("including", "first"),
    [((9, 9, 9), None), ((9, 9, 3), 4), ((9, 1, 3), 2), ((0, 0, 0), 1), ((0, 9, 3), 4), ((0, 0, 4), None)],
)
def test_a_header_pays_from_the_number_of_units_on_which_it_always_saves_time(including, first):
    from benchmarks.building.precompiled_header import pays_from

    counts = (1, 2, 4)
    without = dict(zip(counts, (1, 2, 4), strict=True))
    assert pays_from(counts, without, dict(zip(counts, including, strict=True))) == first
