"""`opforge report`: every part is printed, and one broken part hides no other."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from support.offered_ops import CompatibleBuilder, IncompatibleBuilder, offer

from opforge.cli import group
from opforge.report import machine, ops

CANDIDATES = [
    {"name": "cuda", "available": False, "reason": "no device", "source": "torch"},
    {"name": "cpu", "available": True, "reason": "available", "source": "opforge"},
]


@pytest.fixture
def healthy_machine(monkeypatch):
    """A machine without a problem; returns the records that a test changes to break one part."""
    accelerators = {
        "candidates": CANDIDATES,
        "problems": [],
        "in_use": {"name": "cpu", "target": "cpu:x86-64", "ops": "opforge.builders.cpu"},
        "capabilities": {"device": "cpu", "total_memory": 1 << 30, "triton": False, "simd": ["avx", "sse"], "x": None},
    }
    compiler = {"name": "host", "path": "/usr/bin/g++", "version": "g++ 12", "problem": ""}
    monkeypatch.setattr(machine, "environment", lambda: environment({"version": "2.13.0", "path": "/torch"}))
    monkeypatch.setattr(machine, "accelerators", lambda: accelerators)
    monkeypatch.setattr(machine, "compilers", lambda: [compiler])
    monkeypatch.setattr(ops, "offers", lambda devices=(): [offer("ReluBuilder", CompatibleBuilder)])
    return {"accelerators": accelerators, "compiler": compiler}


def environment(torch):
    return {"python": {"version": "3.11.7", "path": "/python", "tag": "cpython-311"}, "torch": torch}


def report(*options):
    return CliRunner().invoke(group, ["report", *options])


def test_a_whole_report(healthy_machine, own_store):
    done = report()
    assert done.exit_code == 0 and done.stderr == ""
    for line in (
        "torch 2.13.0, /torch",
        "cuda\tno\tno device\ttorch",
        "cpu\tin use\tavailable\topforge",
        "total_memory\t1.0 GiB",
        "simd\tavx sse",
        "x\tnone",
        "host\tg++ 12\t/usr/bin/g++",
        f"{own_store} (OPFORGE_CACHE_DIR): does not exist yet",
        "ReluBuilder\tcpu\tcpu:x86-64\tbuildable\t",
    ):
        assert line in done.stdout.splitlines()


def test_a_missing_layer_is_marked(healthy_machine, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", f"{tmp_path}:{tmp_path}/typo")
    lines = report().stdout.splitlines()
    assert f"layer: {tmp_path}" in lines and f"layer: {tmp_path}/typo (there is no such folder)" in lines


def test_a_report_as_json(healthy_machine):
    document = json.loads(report("--json").stdout)
    assert document["ok"] is True and document["ops"][0]["state"] == "buildable"
    assert document["accelerators"]["candidates"] == CANDIDATES


def test_a_missing_compiler_fails_the_report(healthy_machine):
    healthy_machine["compiler"]["problem"] = "No C++ compiler was found."
    done = report()
    assert done.exit_code == 1 and "host\tNo C++ compiler was found.\t/usr/bin/g++" in done.stdout


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
    done = report()
    assert done.exit_code == 1 and "ReluBuilder\tcpu\tcpu:x86-64\tunusable\tit needs a device" in done.stdout
