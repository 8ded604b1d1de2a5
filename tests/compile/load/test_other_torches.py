"""One binary for every torch and Python: what is built here is loaded by other interpreters, without a compiler.

OPFORGE_OTHER_PYTHONS names them, separated by colons: each with a torch of its own, 2.10 or newer. It is not set by
default, since another torch is a download of gigabytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from opforge.builders.toolchains import nvcc
from opforge.errors import ToolchainNotFoundError

pytestmark = pytest.mark.compile
OTHERS = [path for path in os.environ.get("OPFORGE_OTHER_PYTHONS", "").split(":") if path]
SOURCES = Path(__file__).resolve().parents[3] / "src"
STEP = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
import opforge
op = opforge.get_accelerator().create_op_builder("CPUAdamBuilder").load()
torch.manual_seed(0)
ours = torch.randn(1001)
theirs, gradient = ours.clone().requires_grad_(), torch.randn(1001)
states = torch.zeros(1001), torch.zeros(1001)
op.create_adam(0, 1e-2, 0.9, 0.999, 1e-8, 0.1, True, False)
reference = torch.optim.AdamW([theirs], lr=1e-2, weight_decay=0.1)
for step in range(1, 6):
    op.adam_update(0, step, 1e-2, 0.9, 0.999, 1e-8, 0.1, True, ours, gradient, *states)
    theirs.grad = gradient.clone()
    reference.step()
refused = ""
try:
    op.adam_update(0, 6, 1e-2, 0.9, 0.999, 1e-8, 0.1, True, ours, gradient[:5], *states)
except RuntimeError as error:
    refused = str(error)
far = (ours - theirs.detach()).abs().max().item()
print(json.dumps({"origin": op.origin, "far": far, "refused": refused}))
"""
CUDA = """
import ctypes, json, sys, torch
described = ctypes.CDLL(sys.argv[1]).opforge_describe
described.restype = ctypes.c_char_p
print(json.dumps({"cuda": torch.version.cuda, "described": described().decode()}))
"""


def answer(python, code, *arguments, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPFORGE_", "PYTHON"))}
    done = subprocess.run(
        [python, "-c", code, *arguments], env={**clean, **environment}, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def build(folder, *arguments):
    command = [sys.executable, "-m", "opforge", "build-ops", "--out", str(folder), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    (built,) = json.loads(done.stdout)["ops"]
    return built["path"]


@pytest.mark.skipif(not OTHERS, reason="OPFORGE_OTHER_PYTHONS names no interpreter with a torch of its own")
@pytest.mark.parametrize("python", OTHERS)
def test_an_op_for_the_cpu_runs_under_another_torch_and_python(tmp_path, python):
    build(tmp_path / "layer", "CPUAdam")
    environment = {"OPFORGE_CACHE_LAYERS": str(tmp_path / "layer"), "OPFORGE_CACHE_DIR": str(tmp_path / "cache")}
    told = answer(python, STEP, str(SOURCES), PATH="/nonexistent", OPFORGE_PREBUILT="require", **environment)
    assert told["origin"] == str(tmp_path / "layer")
    assert told["far"] < 5e-6  # of values up to 4, after five steps
    assert told["refused"], "a failed check crosses as an exception"


@pytest.mark.skipif(not OTHERS, reason="OPFORGE_OTHER_PYTHONS names no interpreter with a torch of its own")
@pytest.mark.parametrize("python", OTHERS)
def test_an_op_for_cuda_is_opened_by_a_torch_that_has_cuda(tmp_path, python):
    try:
        nvcc.find()
    except ToolchainNotFoundError as error:
        pytest.skip(str(error))
    if not answer(python, "import json, torch; print(json.dumps(torch.version.cuda))"):
        pytest.skip(f"the torch of {python} has no CUDA")
    library = build(tmp_path / "layer", "FusedAdam", "--target", "cuda:sm_80+ptx")
    assert "opforge::fused_adam_(" in answer(python, CUDA, library)["described"]
