"""DeepSpeed on opforge in every process of a program: OPFORGE_DEEPSPEED, and ZenFlow's process of its optimizer."""

from __future__ import annotations

import os

import pytest
from support import deepspeed_job, text_files
from support.compat import installed_metadata
from support.paths import SOURCE_TREE

if not deepspeed_job.is_installed():
    pytest.skip(deepspeed_job.MISSING, allow_module_level=True)

MODULE = """
import json, multiprocessing, subprocess, sys

def where():
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops.adam.cpu_adam import CPUAdamBuilder
    from deepspeed.ops.op_builder import CPULionBuilder
    return [get_accelerator().__class__.__name__, CPUAdamBuilder.__module__, CPULionBuilder.__module__]

def started(method):
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.apply(where)

def ran():
    code = "import json, program; print(json.dumps(program.where()))"
    output = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])
"""
INHERITED = """
import json, sys
from program import where, started
print(json.dumps({"before": "deepspeed" in sys.modules, "self": where(), "spawn": started("spawn")}))
"""
FURTHER = """
import json
from program import started, ran
print(json.dumps({"forkserver": started("forkserver"), "program": ran()}))
"""
INSTALLED = """
import json, os, opforge.compat.deepspeed as compat
from program import where, started, ran
compat.install(["CPULionBuilder"])
facts = {"variable": os.environ["OPFORGE_DEEPSPEED"], "self": where(), "spawn": started("spawn")}
compat.install()
facts["all"] = os.environ["OPFORGE_DEEPSPEED"]
compat.uninstall()
facts |= {"left": os.environ.get("OPFORGE_DEEPSPEED"), "after": ran()}
print(json.dumps(facts))
"""
WRONG = """
import json, os, torch
try:
    import deepspeed
except ValueError as error:
    print(json.dumps({"type": type(error).__name__, "text": str(error)}))
"""
ZENFLOW = """
import glob, json, os
from types import SimpleNamespace

import torch, deepspeed
from deepspeed.runtime.zenflow import zenflow_utils
from opforge.ops import reference

deepspeed.ops.__compatible_ops__ = {}  # one rank needs no shared-memory op, which DeepSpeed takes minutes to build
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
param = torch.nn.Parameter(torch.randn(1001))
param.overlap_grad = [torch.zeros(1001), torch.zeros(1001)]
groups = [{"params": [param]}]
optimizer = SimpleNamespace(zf_stage3=False, optimizer=SimpleNamespace(param_groups=groups), pt_reserved_cores_perc=0.5)
zenflow_utils.start_optimizer_process(optimizer)
op, control = optimizer.zf_op, optimizer.zf_ctrl.data_ptr()
exact = param.detach().double()
states = [[torch.zeros(1001).double(), torch.zeros(1001).double()] for _ in range(2)]
differences = []
for step in range(1, 6):
    now = step % 2
    grad = torch.randn(1001)
    param.overlap_grad[now].copy_(grad)
    op.zenflow_adam_submit(control, now, step, [1e-2], [0.9], [0.999], [1e-8], [0.01], [1])
    while not op.zenflow_adam_wait(control, 60):
        assert optimizer.process.is_alive()
    numbers = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
    exact, *states[now] = reference.adam(exact, grad.double(), *states[now], step=step, **numbers)
    differences.append((param.detach().double() - exact).abs().max().item())
op.zenflow_adam_ctrl_exit(control)
optimizer.process.join(60)
print(json.dumps({"differences": differences, "exit code": optimizer.process.exitcode, "op": op.path,
                  "copied": torch.equal(param.stale_param, param),
                  "built by DeepSpeed": os.listdir(os.environ["TORCH_EXTENSIONS_DIR"])}))
"""
PLAIN = "deepspeed.ops.op_builder.cpu"
OURS = ["DeepSpeedCPUAccelerator", "opforge.builders.cpu.adam", "opforge.builders.cpu.lion"]


@pytest.fixture
def run(shared_store, tmp_path):
    """Runs a program as the only rank of a job, with opforge's entry points on the path."""
    text_files.write(tmp_path, "program.py", MODULE)
    extensions = tmp_path / "extensions"
    extensions.mkdir()
    path = os.pathsep.join([installed_metadata.with_entry_points(tmp_path), SOURCE_TREE])
    variables = {"PYTHONPATH": path, "TORCH_EXTENSIONS_DIR": str(extensions)}
    return lambda code, **more: deepspeed_job.run(code, shared_store, tmp_path, has_torch=False, **variables, **more)


def test_the_variable_reaches_the_processes_that_a_process_starts(run):
    facts = run(INHERITED, OPFORGE_DEEPSPEED="1")
    assert facts.pop("before") is False
    assert facts == dict.fromkeys(["self", "spawn"], OURS)


@pytest.mark.long("imports DeepSpeed in three processes, each of which has the variable as one of `spawn` has it")
def test_the_variable_reaches_a_forkserver_and_another_program(run):
    facts = run(FURTHER, OPFORGE_DEEPSPEED="1")
    assert facts == dict.fromkeys(["forkserver", "program"], OURS)


@pytest.mark.long("imports DeepSpeed in six processes")
def test_processes_started_after_install_use_the_same_builders(run):
    facts = run(INSTALLED, OPFORGE_DEEPSPEED=None)
    assert facts["variable"] == "CPULionBuilder" and facts["all"] == "1"
    assert facts["self"] == facts["spawn"] == [OURS[0], f"{PLAIN}.cpu_adam", OURS[2]]
    assert facts["left"] is None
    assert facts["after"] == ["CPU_Accelerator", f"{PLAIN}.cpu_adam", f"{PLAIN}.cpu_lion"]


def test_a_wrong_value_fails_deepspeeds_import_and_not_torchs(run):
    facts = run(WRONG, OPFORGE_DEEPSPEED="CPUAdam")
    assert facts["type"] == "SettingError"
    assert facts["text"].startswith("OPFORGE_DEEPSPEED='CPUAdam' cannot be used: expected 1, 0, or builders")


@pytest.mark.long("imports DeepSpeed in processes; test_zenflow.py has the steps")
def test_zenflows_process_is_on_opforge_and_performs_the_steps_of_the_float64_reference(run, shared_store):
    facts = run(ZENFLOW, OPFORGE_DEEPSPEED="1")
    assert max(facts["differences"]) < 2e-6
    assert facts["copied"] is True
    assert facts["exit code"] == 0
    assert facts["op"].startswith(str(shared_store))
    assert facts["built by DeepSpeed"] == []
