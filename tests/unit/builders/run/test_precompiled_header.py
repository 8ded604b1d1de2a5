"""Which units share a precompiled header: those that see the same text without it, and only if it saves time."""

from __future__ import annotations

import pytest
from support import text_files

from opforge.builders.declaration import abi as abis
from opforge.builders.declaration.build_plan import Step
from opforge.builders.run import precompiled_header
from opforge.cache.records.inputs import RootedPath

HEADER = "<torch/extension.h>"


class Plan:
    """The part of a plan that is read."""

    def __init__(self, abi):
        self.abi = abi


def steps_of(folder, *texts):
    units = []
    for number, text in enumerate(texts):
        path = text_files.write(folder, f"unit{number}.cpp", text)
        argv = ("g++", "-O3", "-MD", "-MF", f"{number}.o.d", "-c", path, "-o", f"{number}.o")
        unit = RootedPath("own", f"unit{number}.cpp")
        units.append(Step(f"{number}.o", (path,), argv, f"compile unit{number}.cpp", f"{number}.o.d", unit))
    return [*units, Step("op.so", tuple(unit.output for unit in units), ("g++", "-shared"), "link op")]


def apply(folder, steps, abi=abis.TORCH, jobs=1):
    return precompiled_header.apply(Plan(abi), steps, jobs, {"own": str(folder)}, str(folder))


def users(steps):
    return [step.output for step in steps if precompiled_header.header_step(step, steps)]


def test_units_that_begin_with_the_header_wait_for_it_and_use_it(tmp_path):
    steps = apply(
        tmp_path, steps_of(tmp_path, f"#include {HEADER}\nint a;", f"// words\n/* more\n*/\n#include {HEADER}\n")
    )
    making, first, second, link = steps
    assert making.argv == (
        "g++",
        "-O3",
        "-MD",
        "-MF",
        "first.h.gch.d",
        "-x",
        "c++-header",
        "first.h",
        "-o",
        "first.h.gch",
    )
    assert (tmp_path / "first.h").read_text() == f"#include {HEADER}\n"
    assert first.argv[:5] == ("g++", "-O3", "-include", "first.h", "-MD") and first.inputs[-1] == "first.h.gch"
    assert users(steps) == [first.output, second.output] and link.argv == ("g++", "-shared")


@pytest.mark.parametrize(
    "text",
    [
        f"#define NDEBUG\n#include {HEADER}\n",
        f"#include <vector>\n#include {HEADER}\n",
        f"#if 1\n#include {HEADER}\n#endif\n",
        f"int a;\n#include {HEADER}\n",
        "#include <torch/types.h>\n",
        "",
    ],
)
def test_a_unit_whose_text_the_header_would_change_does_not_use_it(tmp_path, text):
    steps = apply(tmp_path, steps_of(tmp_path, *[f"#include {HEADER}\n"] * 2, text))
    assert users(steps) == ["0.o", "1.o"]


@pytest.mark.parametrize(("abi", "jobs", "enough"), [(abis.TORCH, 1, 2), (abis.TORCH, 3, 6), (abis.STABLE, 2, 8)])
def test_it_is_made_only_if_enough_units_use_it(tmp_path, abi, jobs, enough):
    steps = steps_of(tmp_path, *[f"#include {HEADER}\n"] * enough)
    assert len(users(apply(tmp_path, steps, abi, jobs))) == enough
    too_few = steps_of(tmp_path, *[f"#include {HEADER}\n"] * (enough - 1), "int plain;\n")
    assert apply(tmp_path, too_few, abi, jobs) == too_few


def test_units_of_plain_functions_share_no_header(tmp_path):
    steps = steps_of(tmp_path, *["int a;\n"] * 40)
    assert apply(tmp_path, steps, abis.PLAIN) == steps


def test_a_source_that_cannot_be_read_does_not_use_it(tmp_path):
    steps = steps_of(tmp_path, *[f"#include {HEADER}\n"] * 3)
    (tmp_path / "unit1.cpp").unlink()
    assert users(apply(tmp_path, steps)) == ["0.o", "2.o"]


def test_units_with_other_flags_do_not_share_the_header(tmp_path):
    steps = steps_of(tmp_path, *[f"#include {HEADER}\n"] * 5)
    steps[1:3] = [step._replace(argv=("g++", "-O3", "-DA=2", *step.argv[2:])) for step in steps[1:3]]
    changed = apply(tmp_path, steps)
    assert changed[0].argv[:3] == ("g++", "-O3", "-MD") and users(changed) == ["0.o", "3.o", "4.o"]
    assert changed[2:4] == steps[1:3]
