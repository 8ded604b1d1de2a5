"""`opforge report`: every part is printed, and one broken part hides no other."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from support import child_processes
from support.offered_ops import CompatibleBuilder, IncompatibleBuilder, offer

from opforge.cli import group
from opforge.report import machine, ops, summary

CANDIDATES = [
    {"name": "cuda", "available": False, "reason": "no device", "source": "torch"},
    {"name": "cpu", "available": True, "reason": "available", "source": "opforge"},
]


class FakeGPU:
    """The accelerator of an offer under the name of another one."""

    name = "cuda"

    def __init__(self, accelerator):
        self._accelerator = accelerator

    def __getattr__(self, name):
        return getattr(self._accelerator, name)


@pytest.fixture
def healthy_machine(monkeypatch):
    """A machine without a problem; returns the records that a test changes to break one part."""
    accelerators = {
        "candidates": CANDIDATES,
        "problems": [],
        "ignored": [],
        "in_use": {"name": "cpu", "target": "cpu:x86-64", "ops": "opforge.builders.cpu"},
        "capabilities": {"device": "cpu", "total_memory": 1 << 30, "triton": False, "simd": ["avx", "sse"], "x": None},
    }
    compiler = {"name": "host", "path": "/usr/bin/g++", "version": "g++ 12", "problem": ""}
    monkeypatch.setattr(machine, "environment", lambda: environment({"version": "2.13.0", "path": "/torch"}))
    monkeypatch.setattr(machine, "accelerators", lambda: accelerators)
    absent = {"name": "nvcc", "path": "", "version": "No nvcc was found.", "problem": "", "missing": "Install it"}
    monkeypatch.setattr(machine, "compilers", lambda: [compiler, absent])
    monkeypatch.setattr(ops, "offers", lambda devices=(): [offer("ReluBuilder", CompatibleBuilder)])
    return {"accelerators": accelerators, "compiler": compiler}


def environment(torch):
    return {"python": {"version": "3.11.7", "path": "/python", "tag": "cpython-311"}, "torch": torch}


def report(*options):
    return CliRunner().invoke(group, ["report", *options])


def test_a_short_report_has_a_summary_after_what_needs_no_torch_and_folds_what_is_absent(healthy_machine, own_store):
    done = report()
    assert done.exit_code == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("opforge ") and lines[1:3] == [
        "Python 3.11.7 (cpython-311), /python",
        "torch 2.13.0, /torch",
    ]
    assert lines[3:5] == ["", "compilers"]
    summary = lines.index("summary")
    assert lines.index("cache") < summary < lines.index("ops")
    assert lines[summary : summary + 4] == [
        "summary",
        "accelerator: cpu in use, target cpu:x86-64",
        "ops: 1 of 1 usable: 1 buildable",
        "needs attention: nothing",
    ]
    assert "host\tg++ 12\t/usr/bin/g++" in lines and "ReluBuilder\tcpu\tbuildable" in lines
    assert f"{own_store} (OPFORGE_CACHE_DIR): does not exist yet" in lines and "not installed: nvcc" in lines
    assert lines[-1] == "not usable here: cuda. For the reasons, and for paths: opforge report --all"
    assert "total_memory" not in done.stdout and "no device" not in done.stdout


def test_compilers_and_the_cache_are_printed_before_torch_is_imported():
    code = """
import sys
from opforge.cli import report
shown = []
def show(gathered):
    shown.extend(gathered)
    assert "torch" not in sys.modules
report.gather(show)
assert {"torch", "compilers", "cache"} <= set(shown) and "torch" in sys.modules
"""
    child_processes.run_python(code)


def test_all_shows_the_rest(healthy_machine):
    done = report("--all")
    assert done.exit_code == 0 and done.stderr == ""
    for line in (
        "cuda\tno\tno device\ttorch",
        "cpu\tin use\tavailable\topforge",
        "total_memory\t1.0 GiB",
        "simd\tavx sse",
        "x\tnone",
        "nvcc\tNo nvcc was found.\t",
        "ReluBuilder\tcpu\tcpu:x86-64\tbuildable\t",
    ):
        assert line in done.stdout.splitlines()


def test_a_reason_of_several_ops_is_printed_once_with_their_names(healthy_machine, monkeypatch):
    names = [f"Relu{number}Builder" for number in range(3)]
    monkeypatch.setattr(ops, "offers", lambda devices=(): [offer(name, IncompatibleBuilder) for name in names])
    done = report()
    assert done.stdout.count("it needs a device") == 1
    assert "\nneeds attention: 1\nproblem: Relu0Builder, Relu1Builder, Relu2Builder: it needs a device\n" in done.stdout
    assert "ops: 0 of 3 usable\n" in done.stdout


def test_engines_of_asynchronous_files_are_listed_with_the_reason_why_one_is_out(healthy_machine, monkeypatch):
    engines = {"io_uring": "seccomp forbids it", "threads": ""}
    monkeypatch.setattr(summary, "aio_engines", lambda ops: {"engines": engines, "problem": ""})
    assert "\nasynchronous files: threads; io_uring cannot be used: seccomp forbids it\n" in report().stdout
    monkeypatch.setattr(summary, "aio_engines", lambda ops: {"engines": {}, "problem": "OSError: x"})
    assert "\nproblem: asynchronous files: OSError: x\n" in report().stdout


def test_ops_of_deepspeeds_that_take_tensors_of_the_host_alone_are_named_where_a_gpu_is_in_use(
    healthy_machine, monkeypatch
):
    def offers(devices=()):
        host = [offer(name, CompatibleBuilder) for name in ("TransformerBuilder", "FusedAdamBuilder", "CPUAdamBuilder")]
        gpu = offer("FusedAdamBuilder", CompatibleBuilder)
        return [*host, gpu._replace(accelerator=FakeGPU(gpu.accelerator))]

    monkeypatch.setattr(ops, "offers", offers)
    assert "for tensors on the CPU alone" not in report().stdout
    healthy_machine["accelerators"]["in_use"] = {"name": "cuda", "target": "cuda:sm_90", "ops": "opforge.builders.cuda"}
    assert "\nfor tensors on the CPU alone, cuda has none of them: TransformerBuilder\n" in report().stdout
    assert json.loads(report("--json").stdout)["host_only"] == ["TransformerBuilder"]


def test_a_missing_layer_is_marked(healthy_machine, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", f"{tmp_path}:{tmp_path}/typo")
    lines = report().stdout.splitlines()
    assert f"layer: {tmp_path}" in lines and f"layer: {tmp_path}/typo (there is no such folder)" in lines
    assert any(line.startswith(f"problem: the layer {tmp_path}/typo does not exist. Correct") for line in lines)


def test_a_file_in_a_layers_place_needs_attention(healthy_machine, monkeypatch, tmp_path):
    (tmp_path / "layer.tar").touch()
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", f"{tmp_path}/layer.tar")
    assert f"\nproblem: the layer {tmp_path}/layer.tar is not a folder. Correct" in report().stdout


def test_a_report_as_json(healthy_machine):
    document = json.loads(report("--json").stdout)
    assert document["ok"] is True and document["ops"][0]["state"] == "buildable"
    assert document["accelerators"]["candidates"] == CANDIDATES


def test_a_broken_accelerator_of_another_package_needs_attention_and_fails_nothing(healthy_machine):
    healthy_machine["accelerators"]["ignored"] = ["the accelerator quick is ignored: it failed"]
    done = report()
    assert done.exit_code == 0
    assert "needs attention: 1\nproblem: the accelerator quick is ignored: it failed\n" in done.stdout


def test_a_missing_compiler_fails_the_report(healthy_machine):
    healthy_machine["compiler"]["problem"] = "No C++ compiler was found."
    done = report()
    assert done.exit_code == 1 and "\nproblem: No C++ compiler was found.\n" in done.stdout
    assert done.stdout.count("No C++ compiler") == 1


def test_a_missing_torch_is_reported(healthy_machine, monkeypatch):
    missing = environment({"problem": "torch is not installed. Install it"})
    monkeypatch.setattr(machine, "environment", lambda: missing)
    done = report()
    assert done.exit_code == 1 and "torch is not installed. Install it\n" in done.stdout


def test_an_unknown_accelerator_hides_nothing_else(healthy_machine):
    problems = ["'npu' is not a known accelerator."]
    healthy_machine["accelerators"].update(problems=problems, in_use=None, capabilities=None)
    done = report()
    assert done.exit_code == 1
    assert "problem: 'npu' is not a known accelerator." in done.stdout and "ReluBuilder\tcpu" in done.stdout


def test_a_broken_builder_package_hides_nothing_else(healthy_machine, monkeypatch):
    def fail(devices=()):
        raise ImportError("no module named x")

    monkeypatch.setattr(ops, "offers", fail)
    done = report()
    assert done.exit_code == 1 and "problem: ImportError: no module named x" in done.stdout
    assert "host\tg++ 12\t/usr/bin/g++" in done.stdout


def test_an_unusable_op_fails_the_report(healthy_machine, monkeypatch):
    monkeypatch.setattr(ops, "offers", lambda devices=(): [offer("ReluBuilder", IncompatibleBuilder)])
    done = report("--all")
    assert done.exit_code == 1 and "ReluBuilder\tcpu\tcpu:x86-64\tunusable\tit needs a device" in done.stdout


@pytest.mark.parametrize("name", ["/dev/null/cache", "/proc/1/cache"])
def test_a_cache_that_cannot_be_written_fails_the_report_only_if_something_would_be_built(
    healthy_machine, monkeypatch, name
):
    monkeypatch.setattr(machine, "find_problem", lambda *_arguments: None)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", name)
    done = report()
    advice = "Set OPFORGE_CACHE_DIR to a folder that you can write."
    assert done.exit_code == 1 and f"problem: the cache folder {name} cannot be written. {advice}" in done.stdout
    monkeypatch.setattr(ops, "offers", lambda devices=(): [])
    done = report()
    assert done.exit_code == 0 and "needs attention: nothing" in done.stdout
