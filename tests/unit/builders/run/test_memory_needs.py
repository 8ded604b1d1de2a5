"""What is known of the memory that the compiler of each source needs."""

from __future__ import annotations

import pytest
from support.text_files import write

from opforge.builders.declaration.build_plan import BuildPlan, Step
from opforge.builders.run.memory_needs import (
    DEVICE_BYTES,
    HEAVY_BYTES,
    MOST_IN_A_RECORD,
    UNMEASURED_BYTES,
    MemoryNeeds,
    includes_heavy,
)
from opforge.cache.layout import Layout
from opforge.cache.records.inputs import RootedPath
from opforge.cache.store import peaks_in

GB = 1 << 30


def needs_of(tmp_path, sources, learnt=(), abi="torch-stable"):
    """Returns the needs of a plan with these sources, and its steps; the store is the same for each call."""
    units = [RootedPath("own", name) for name in sources]
    empty = dict.fromkeys(BuildPlan._fields, ())
    include = (RootedPath("own", "include"),)
    fields = {**empty, "op": "x", "version": "", "abi": abi, "target": "cuda:sm_90", "include": include}
    plan = BuildPlan(**{**fields, "sources": tuple(units)})
    steps = [Step(f"{unit.path}.o", (), ("cc",), unit.path, unit=unit) for unit in units]
    return MemoryNeeds(plan, {"own": str(tmp_path / "op")}, Layout(str(tmp_path / "store")), learnt), steps


@pytest.fixture
def folder(tmp_path):
    """A folder with sources of each kind."""
    (tmp_path / "op" / "include").mkdir(parents=True)
    write(tmp_path / "op", "plain.cu", "#include <cuda.h>\n")
    write(tmp_path / "op", "direct.cu", "  # include <cutlass/gemm.h>\n")
    write(tmp_path / "op", "indirect.cu", '#include "launch.h"\n')
    write(tmp_path / "op" / "include", "launch.h", '#include "deeper.h"\n')
    write(tmp_path / "op" / "include", "deeper.h", '#include "launch.h"\n#include <cute/tensor.hpp>\n')
    write(tmp_path / "op", "host.cpp", "// #include <cutlass/gemm.h>\n")
    return tmp_path


def test_headers_suggest_what_a_source_needs_until_it_is_measured(folder):
    needs, steps = needs_of(folder, ["host.cpp", "plain.cu", "indirect.cu", "direct.cu"])
    expected = {"host.cpp.o": UNMEASURED_BYTES["torch-stable"], "plain.cu.o": DEVICE_BYTES}
    of_steps, guessed = needs.of(steps)
    assert of_steps == {**expected, "indirect.cu.o": HEAVY_BYTES, "direct.cu.o": HEAVY_BYTES}
    assert guessed[0] == "indirect.cu.o", "the kind that may need the most is measured first"
    assert set(guessed[:3]) == {"indirect.cu.o", "plain.cu.o", "host.cpp.o"}, "then one of each kind"


def test_the_others_of_its_kind_need_what_the_first_needed(folder):
    needs, steps = needs_of(folder, ["plain.cu", "indirect.cu", "direct.cu"])
    needs.learn(steps, {"indirect.cu.o": 3 * GB})
    assert needs.of(steps) == (
        {"plain.cu.o": DEVICE_BYTES, "indirect.cu.o": 3 * GB, "direct.cu.o": 3 * GB},
        ["plain.cu.o"],
    )


def test_what_was_measured_is_kept_by_source(folder):
    needs, steps = needs_of(folder, ["plain.cu", "direct.cu"])
    needs.learn(steps, {"direct.cu.o": 3 * GB}, largest=3 * GB)
    needs.keep()
    again, steps = needs_of(folder, ["direct.cu", "host.cpp"])
    assert again.of(steps)[0] == {"direct.cu.o": 3 * GB, "host.cpp.o": UNMEASURED_BYTES["torch-stable"]}
    assert again.expected() == 3 * GB


def test_a_compiler_that_was_killed_needs_at_least_what_it_had(folder):
    needs, steps = needs_of(folder, ["plain.cu", "direct.cu"])
    needs.learn(steps, {"direct.cu.o": 3 * GB})
    needs.learn(steps, {"direct.cu.o": 2 * GB})
    assert needs.known == {"own/direct.cu": 3 * GB}
    needs.learn(steps, {"direct.cu.o": 2 * GB}, largest=2 * GB)
    assert needs.known["own/direct.cu"] == 2 * GB, "it has ended well: the source was changed"


def test_what_records_state_is_used_until_it_is_measured_here(folder):
    needs, steps = needs_of(folder, ["plain.cu", "direct.cu"], [("own/direct.cu", 5 * GB), ("own/plain.cu", GB)])
    assert needs.of(steps) == ({"plain.cu.o": GB, "direct.cu.o": 5 * GB}, [])
    needs.learn(steps, {"direct.cu.o": 2 * GB}, largest=2 * GB)
    needs.keep()
    again, steps = needs_of(folder, ["direct.cu"], [("own/direct.cu", 5 * GB)])
    assert again.of(steps)[0] == {"direct.cu.o": 2 * GB}


def test_a_record_states_the_sources_that_need_the_most(folder):
    names = [f"{number}.cu" for number in range(MOST_IN_A_RECORD + 8)]
    needs, steps = needs_of(folder, names)
    needs.learn(steps, {f"{name}.o": GB + number for number, name in enumerate(names)})
    needs.known["own/0.cu"] = 1 << 20
    stated = needs.stated()
    assert len(stated) == MOST_IN_A_RECORD and f"own/{MOST_IN_A_RECORD + 7}.cu" in stated and "own/1.cu" not in stated
    assert peaks_in({"peaks": stated}) == tuple(stated.items())


@pytest.mark.parametrize("peaks", [None, [], "x", {"a": "b"}, {"a": 0}, {"a": True}, {"a": 1.5}, {"a": -1}])
def test_a_damaged_record_states_nothing(peaks):
    assert peaks_in({"peaks": peaks}) == () == peaks_in({})


def test_a_source_that_is_missing_suggests_nothing(tmp_path):
    assert not includes_heavy(str(tmp_path / "none.cu"), [])
