"""One binary for every torch and Python: other interpreters load the ops that are built here, without a compiler.

OPFORGE_OTHER_PYTHONS names the interpreters, separated by colons. Each must have its own torch, 2.10 or newer. The
variable is not set by default: another torch is a download of gigabytes.
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
OTHER_PYTHONS = [path for path in os.environ.get("OPFORGE_OTHER_PYTHONS", "").split(":") if path]
SOURCES = Path(__file__).resolve().parents[3] / "src"
ADAM_STEPS = """
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
message = ""
try:
    op.adam_update(0, 6, 1e-2, 0.9, 0.999, 1e-8, 0.1, True, ours, gradient[:5], *states)
except RuntimeError as error:
    message = str(error)
error = (ours - theirs.detach()).abs().max().item()
print(json.dumps({"origin": op.origin, "error": error, "message": message}))
"""
DESCRIBE = """
import ctypes, json, sys, torch
describe = ctypes.CDLL(sys.argv[1]).opforge_describe
describe.restype = ctypes.c_char_p
print(json.dumps({"cuda": torch.version.cuda, "description": describe().decode()}))
"""


def run_in(python, code, *arguments, **environment):
    """Runs `code` in another interpreter and returns the JSON that it prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPFORGE_", "PYTHON"))}
    done = subprocess.run(
        [python, "-c", code, *arguments], env={**clean, **environment}, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def build_into(folder, *arguments):
    """Builds an op into a layer and returns the path of its library."""
    command = [sys.executable, "-m", "opforge", "build-ops", "--out", str(folder), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    (op,) = json.loads(done.stdout)["ops"]
    return op["path"]


@pytest.mark.skipif(not OTHER_PYTHONS, reason="OPFORGE_OTHER_PYTHONS names no interpreter with a torch of its own")
@pytest.mark.parametrize("python", OTHER_PYTHONS)
def test_an_op_for_the_cpu_runs_under_another_torch_and_python(tmp_path, python):
    build_into(tmp_path / "layer", "CPUAdam")
    environment = {"OPFORGE_CACHE_LAYERS": str(tmp_path / "layer"), "OPFORGE_CACHE_DIR": str(tmp_path / "cache")}
    result = run_in(python, ADAM_STEPS, str(SOURCES), PATH="/nonexistent", OPFORGE_PREBUILT="require", **environment)
    assert result["origin"] == str(tmp_path / "layer")
    assert result["error"] < 5e-6  # the values are up to 4, after five steps
    assert result["message"], "a failed check is an exception"


@pytest.mark.skipif(not OTHER_PYTHONS, reason="OPFORGE_OTHER_PYTHONS names no interpreter with a torch of its own")
@pytest.mark.parametrize("python", OTHER_PYTHONS)
def test_an_op_for_cuda_is_opened_by_a_torch_that_has_cuda(tmp_path, python):
    try:
        nvcc.find()
    except ToolchainNotFoundError as error:
        pytest.skip(str(error))
    if not run_in(python, "import json, torch; print(json.dumps(torch.version.cuda))"):
        pytest.skip(f"the torch of {python} has no CUDA")
    library = build_into(tmp_path / "layer", "FusedAdam", "--target", "cuda:sm_80+ptx")
    assert "opforge::fused_adam_(" in run_in(python, DESCRIBE, library)["description"]
