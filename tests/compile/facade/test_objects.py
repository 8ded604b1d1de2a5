"""Python's own objects, numpy's arrays, and what a source adds to pybind11, compared with what torch's headers gave."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from facade.compiling import compile_library
from support.processes import forked_python

SUPPORT = Path(__file__).parents[2] / "support" / "facade"
RECORDED_WITH = "2.13"


@pytest.mark.parametrize(("kind", "least"), [("object", 400), ("array", 490), ("addition", 190)])
def test_objects_arrays_and_a_sources_own_additions_are_as_in_pybind11(tmp_path: Path, kind: str, least: int) -> None:
    library = tmp_path / f"facade_{kind}s.so"
    compile_library("facade", f"facade_{kind}s", [SUPPORT / f"{kind}s_source.cpp"], library, ["-O0"])
    command = [forked_python.python(), str(SUPPORT / f"{kind}_cases.py"), str(library)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout)
    recorded = json.loads((SUPPORT / f"{kind}_outcomes.json").read_text())
    assert len(recorded) > least and found.keys() == recorded.keys()
    if not torch.__version__.startswith(RECORDED_WITH):
        found, recorded = ({name: [outcome[0]] for name, outcome in part.items()} for part in (found, recorded))
    assert {name: outcome for name, outcome in found.items() if outcome != recorded[name]} == {}
