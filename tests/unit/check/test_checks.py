"""What a run of checks makes of the time that it has."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner
from support import child_processes, sample_ops

import opforge
from opforge.accelerator import select
from opforge.bench import machine
from opforge.check import checks, stages
from opforge.cli.check import command
from opforge.errors import OpIncompatibleError

torch = pytest.importorskip("torch", reason="pip install torch")


def test_the_contract_tests_the_accelerator_that_a_remembered_choice_stands_for():
    said = dict[str, object]()
    stages.check_accelerator(select.LazyCPUAccelerator(), said.update)
    assert said["state"] == "ok" and said["target"] == str(opforge.get_accelerator().target())


CODE = """
import json, time
from types import SimpleNamespace
from opforge.check import checks, kernels

installed = [SimpleNamespace(name=name, accelerator="cpu", label="", package="") for name in ("acme/one", "acme/two")]
checks.selected = lambda names, devices, own: ([], installed)
kernels.prepare = lambda kernel, say: None
kernels.check_kernel = lambda kernel, say: time.sleep(100)
for checks.MOST_SECONDS, timeout, is_limited in ((1, 50.0, True), (100, 0.5, True), (0.1, 0.5, False)):
    rows = checks.run([], ["cpu"], timeout, lambda row: None, None, is_limited)
    print(json.dumps([(row.name, row.state, row.reason) for row in rows]))
"""


def test_an_op_that_runs_when_the_time_is_over_is_skipped_and_one_that_takes_too_long_has_crashed():
    over, *too_long = map(json.loads, child_processes.run_with_torch(CODE).splitlines())
    text, every = "the 1 s of a run were over: check it with: opforge check", "or all with: opforge check --all"
    assert over == [[name, "skipped", f"{text} {name}, {every}"] for name in ("acme/one", "acme/two")]
    # With --all, the last one, the time of a run does not count.
    assert too_long == [[[name, "crashed", "it did not end within 0.5 s"] for name in ("acme/one", "acme/two")]] * 2


def test_the_report_does_not_ask_the_driver_that_the_checks_have_found_broken(monkeypatch):
    def broken(*_arguments):
        raise AssertionError("the device was asked for its name again")

    monkeypatch.setattr(torch.cuda, "get_device_name", broken)
    crashed = checks.Checked("Op", "cuda", state="crashed", reason="it was ended by signal 11", device="a GPU")
    on_host = checks.Checked("Op", "cpu", state="ok", device="a processor")
    monkeypatch.setattr(checks, "run", lambda *_arguments: [crashed._replace(device=""), crashed, on_host])
    done = CliRunner().invoke(command, ["--json"])
    report = json.loads(done.stdout)
    assert report["machine"]["device"] == "a GPU" and report["results"][1]["reason"] == crashed.reason
    assert done.exit_code == 1


@pytest.mark.parametrize("device", ["mps", "npu"])
def test_a_device_that_torch_has_no_name_for_is_named_by_its_kind(device):
    assert machine.device_name(device) == device


def test_a_class_of_ones_own_is_checked_by_its_import_path(tmp_path, own_store):
    builder = sample_ops.plain_op(tmp_path)
    setattr(sys.modules[builder.__module__], builder.__name__, builder)
    name = f"{builder.__module__}:{builder.__name__}"
    done = CliRunner().invoke(command, [name, "--device", "cpu", "--json"])
    (row,) = json.loads(done.stdout)["results"]
    assert (row["name"], row["state"], row["package"]) == (name, "unchecked", builder.__module__), row
    listed = CliRunner().invoke(command, [name, "--device", "cpu", "--list", "--json"])
    assert [last["state"] for last in json.loads(listed.stdout)] == ["unchecked"]


def test_a_class_of_ones_own_for_other_devices_is_refused(tmp_path):
    builder = sample_ops.plain_op(tmp_path)
    with pytest.raises(OpIncompatibleError, match="cannot be used for null:\n  - it is an op for cpu"):
        checks.selected(["m:C"], ["null"], {"m:C": builder})


def test_a_function_is_no_class_of_ones_own_and_an_unusable_class_is_a_failure(tmp_path, own_store):
    builder = sample_ops.plain_op(tmp_path, devices=["cpu"], libraries="m")
    module = sys.modules[builder.__module__]
    setattr(module, builder.__name__, builder)
    module.value = 3
    done = CliRunner().invoke(command, [f"{module.__name__}:value", "--device", "cpu"])
    assert done.exit_code == 2 and "has no class of a builder that is named 'value'. It has: " in done.stderr
    done = CliRunner().invoke(command, [f"{module.__name__}:{builder.__name__}", "--device", "cpu"])
    assert done.exit_code == 1 and "libraries='m'. Expected a list of strings" in done.stdout


@pytest.mark.parametrize("name", ["NoSuchOp", "", "builder"])
def test_a_name_that_no_package_offers_is_wrong_usage(name):
    done = CliRunner().invoke(command, [name, "--device", "cpu"])
    assert done.exit_code == 2 and "A class of your own is named by package.module:Class." in done.stderr
