"""Python's own objects and containers in a facade module, compared with what torch's own headers gave."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from facade.compiling import compile_library

SUPPORT = Path(__file__).parents[2] / "support" / "facade"
RECORDED_WITH = "2.13"


def test_pythons_own_objects_and_containers_are_pybind11s(tmp_path: Path) -> None:
    library = tmp_path / "facade_objects.so"
    compile_library("facade", "facade_objects", [SUPPORT / "objects_source.cpp"], library, ["-O0"])
    command = [sys.executable, "-W", "ignore", str(SUPPORT / "object_cases.py"), str(library)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout)
    recorded = json.loads((SUPPORT / "object_outcomes.json").read_text())
    assert len(recorded) > 280 and found.keys() == recorded.keys()
    if not torch.__version__.startswith(RECORDED_WITH):
        found, recorded = ({name: [outcome[0]] for name, outcome in part.items()} for part in (found, recorded))
    assert {name: outcome for name, outcome in found.items() if outcome != recorded[name]} == {}
