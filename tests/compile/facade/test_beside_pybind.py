"""Three libraries of the facade and an extension of pybind11's in one process, with classes of the same names."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from facade.compiling import TORCH, compile_library
from support import child_processes

SOURCE = Path(__file__).parents[2] / "support" / "facade" / "beside_source.cpp"
ON_FACADE, PYBIND = ("beside_a", "beside_b", "beside_c"), "beside_pybind"
CHILD = """
import builtins, importlib, itertools, json, sys
import torch
sys.path.insert(0, sys.argv[1])
known = set(vars(builtins))
modules, brought = {}, {}
for name in sys.argv[2:]:
    modules[name] = importlib.import_module(name)
    brought[name] = sorted(set(vars(builtins)) - known)
    known = set(vars(builtins))

def outcome(call, *arguments):
    try:
        return repr(call(*arguments))
    except Exception as error:
        return f"{type(error).__module__}.{type(error).__name__}: {str(error).splitlines()[0]}"

own, foreign = {}, {}
for name, m in modules.items():
    errors = [outcome(m.fail, kind) for kind in range(6)]
    texts = [outcome(m.fail, "x").replace(name, "m"), outcome(lambda: m.doubled(m.Box(value=4)).value)]
    sides = [outcome(m.is_left, side) for side in (m.Side.Left, m.Side.Right)] + [str(m.Side.Right)]
    own[name] = [*errors, *texts, *sides, [m.counted() for _ in range(2)]]
for one, other in itertools.permutations(modules.values(), 2):
    foreign[f"{one.__name__} {other.__name__}"] = [
        outcome(one.doubled, other.Box(1)).partition(":")[0],
        outcome(one.is_left, other.Side.Left).partition(":")[0],
        isinstance(other.Box(1), one.Box) or one.Box is other.Box,
    ]
print(json.dumps([own, foreign, brought]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beside")
    for name in ON_FACADE:
        compile_library("facade", name, [SOURCE], folder / f"{name}.abi3.so", ["-O0"])
    target = folder / f"{PYBIND}{sysconfig.get_config_var('EXT_SUFFIX')}"
    given = [f"-I{TORCH}", f"-I{sysconfig.get_path('include')}", "-std=c++17", "-fPIC", "-fvisibility=hidden"]
    subprocess.run(["g++", "-w", "-O0", *given, "-shared", str(SOURCE), "-o", str(target)], check=True)
    return folder


@pytest.mark.long("compiles four libraries")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_first", [True, False], ids=["pybind11 first", "pybind11 last"])
def test_libraries_of_the_facade_and_one_of_pybind11_share_nothing(folder: Path, is_first: bool) -> None:
    order = [PYBIND, *ON_FACADE] if is_first else [*ON_FACADE, PYBIND]
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), *order],
        capture_output=True,
        text=True,
        env=child_processes.environment(),
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    own, foreign, brought = json.loads(ended.stdout)
    # the same types of exceptions and the same texts, each with state of its own
    assert own[PYBIND][:6] == [
        "builtins.IndexError: out of range",
        "builtins.ValueError: a value",
        "builtins.KeyError: 'a key'",
        "builtins.RuntimeError: broken",
        "builtins.MemoryError: std::bad_alloc",
        "builtins.RuntimeError: Caught an unknown exception!",
    ]
    assert all(own[name] == own[PYBIND] for name in ON_FACADE)
    # no library takes another's objects for its own
    assert len(foreign) == 12
    assert all(outcome == ["builtins.TypeError", "builtins.TypeError", False] for outcome in foreign.values())
    assert all(brought[name] == [] for name in ON_FACADE)
