"""`opforge report`: every part is told, and one broken part hides no other."""

from __future__ import annotations

import json
import os
import sys

import pytest
from click.testing import CliRunner
from support import sample_ops, text_files

from opforge.accelerator.target import Target
from opforge.builders.lookup.compatibility import Compatibility
from opforge.cli import group
from opforge.report import facts

CANDIDATES = [
    {"name": "cuda", "available": False, "reason": "no device", "source": "torch"},
    {"name": "cpu", "available": True, "reason": "available", "source": "opforge"},
]


class Accelerator:
    """An accelerator of one op, whose builder answers as told."""

    name = "cpu"

    def __init__(self, builder):
        self.builder = builder

    def target(self):
        return Target("cpu", ("x86-64",))

    def get_op_builder(self, name):
        return self.builder


def readiness(builder):
    return facts.readiness(facts.Offer("OpBuilder", Accelerator(builder)))


def broken(*, target):
    raise ZeroDivisionError("division by zero")


class Refusing:
    """A builder of another package: it is no OpBuilder."""

    def __init__(self, *, target):
        self.reasons = ("it needs a device",)

    def is_compatible(self):
        return Compatibility(self.reasons)


class Agreeing(Refusing):
    def __init__(self, *, target):
        self.reasons = ()


def test_an_op_that_refuses_gives_its_reasons():
    assert readiness(Refusing) == ("OpBuilder", "cpu", "cpu:x86-64", "unusable", ("it needs a device",), "")


def test_an_op_of_another_package_is_buildable():
    assert readiness(Agreeing).state == "buildable"


def test_a_broken_builder_is_told_not_raised():
    assert readiness(broken).reasons == ("broken: ZeroDivisionError: division by zero",)


def test_an_op_without_a_compiler_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = readiness(sample_ops.plain_op(tmp_path))
    assert found.state == "unusable" and "apt install g++" in found.reasons[0]


def test_compilers_that_are_missing_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    host = facts.compilers()[0]
    assert host["name"] == "host" and host["problem"].startswith("No C++ compiler was found. Looked for:")


def triton_row():
    (told,) = [one for one in facts.compilers() if one["name"] == "triton"]
    return told


@pytest.fixture
def host_compiler(monkeypatch):
    """One without a program, and Triton's toolchain alone: no compiler runs here."""
    from types import SimpleNamespace

    from opforge.builders.toolchains import triton

    told = (("search", "made up"), ("version", "g++ 12"))
    monkeypatch.setattr(facts, "TOOLCHAINS", {"triton": facts.TOOLCHAINS["triton"]})
    monkeypatch.setattr(triton, "HostToolchain", lambda layout, disk: SimpleNamespace(identity=lambda: told))


def test_triton_is_told_by_its_own_version_and_place_and_not_by_the_host_compilers(
    tmp_path, monkeypatch, host_compiler
):
    from opforge.builders.toolchains import triton

    package = tmp_path / "triton"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "3.99.1"\n')
    monkeypatch.setattr(triton, "find", lambda: str(tmp_path))
    assert triton_row() == {"name": "triton", "path": str(package), "version": "3.99.1", "problem": "", "missing": ""}


def test_a_triton_that_is_not_installed_says_how_to_install_it_and_is_no_problem(monkeypatch, host_compiler):
    monkeypatch.setitem(sys.modules, "triton", None)
    told = triton_row()
    assert told["version"] == "not installed: pip install 'opforge[triton]'" and told["path"] == told["problem"] == ""


def test_a_device_compiler_that_is_missing_is_told_in_full_and_is_no_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(facts, "TOOLCHAINS", {"nvcc": facts.TOOLCHAINS["nvcc"]})
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    os.chmod(text_files.write(tmp_path, "g++", "#!/bin/sh\n"), 0o700)
    (told,) = [one for one in facts.compilers() if one["name"] == "nvcc"]
    assert told["version"] == f"CUDA_HOME={tmp_path}/cuda, which has no bin/nvcc" and told["problem"] == ""
    assert f"CUDA_HOME={tmp_path}/cuda, which has no bin/nvcc" in told["missing"]


def test_the_versions_of_both_compilers_are_told():
    both = {"version": "g++ 12", "cuda version": "nvcc 13.0", "cuda ptxas sha256": "ab"}
    assert facts.compilers_in(both) == "nvcc 13.0 with g++ 12"
    assert facts.compilers_in({"version": "g++ 12", "triton version": "3.9"}) == "triton 3.9 with g++ 12"
    assert facts.compilers_in({"version": "zig 0.17"}) == "zig 0.17" and facts.compilers_in({}) == ""


def test_opencl_is_told_to_have_no_compiler_of_its_own(monkeypatch):
    from types import SimpleNamespace

    made = SimpleNamespace(argv=("g++",), root="opencl", identity=lambda: (("version", "g++ 12"),))
    monkeypatch.setattr(facts, "TOOLCHAINS", {"opencl": "unused:unused"})
    monkeypatch.setattr(facts, "_make", lambda where, place: made)
    assert facts.compilers()[0]["version"] == "no compiler of its own: text, put into the library by g++ 12"


def test_a_cache_that_is_not_made_yet(own_store):
    told = facts.cache()
    assert told["path"] == str(own_store) and told["chosen"] and not told["exists"] and told["problem"] == ""
    assert told["entries"] == 0 and not own_store.exists()


def test_a_cache_that_cannot_be_trusted(own_store):
    own_store.mkdir()
    own_store.chmod(0o777)
    assert facts.cache()["problem"] == f"{own_store} can be written by everybody. Run: chmod go-w {own_store}."


@pytest.fixture
def machine(monkeypatch):
    """A machine on which all is well; each test breaks one part."""
    accelerators = {
        "candidates": CANDIDATES,
        "problems": [],
        "in_use": {"name": "cpu", "target": "cpu:x86-64", "ops": "opforge.builders.cpu"},
        "capabilities": {"device": "cpu", "total_memory": 1 << 30, "triton": False, "simd": ["avx", "sse"], "x": None},
    }
    compiler = {"name": "host", "path": "/usr/bin/g++", "version": "g++ 12", "problem": ""}
    monkeypatch.setattr(facts, "environment", lambda: _environment({"version": "2.13.0", "path": "/torch"}))
    monkeypatch.setattr(facts, "accelerators", lambda: accelerators)
    monkeypatch.setattr(facts, "compilers", lambda: [compiler])
    monkeypatch.setattr(facts, "offers", lambda devices=(): [facts.Offer("ReluBuilder", Accelerator(Agreeing))])
    return {"accelerators": accelerators, "compiler": compiler}


def _environment(torch):
    return {"python": {"version": "3.11.7", "path": "/python", "tag": "cpython-311"}, "torch": torch}


def report(*options):
    return CliRunner().invoke(group, ["report", *options])


def test_a_whole_report(machine, own_store):
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
        f"{own_store} (OPFORGE_CACHE_DIR): not made yet",
        "ReluBuilder\tcpu\tcpu:x86-64\tbuildable\t",
    ):
        assert line in done.stdout.splitlines()


def test_a_layer_that_is_missing_is_called_so(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", f"{tmp_path}:{tmp_path}/typo")
    lines = report().stdout.splitlines()
    assert f"layer: {tmp_path}" in lines and f"layer: {tmp_path}/typo (there is no such folder)" in lines


def test_a_report_as_json(machine):
    told = json.loads(report("--json").stdout)
    assert told["ok"] is True and told["ops"][0]["state"] == "buildable"
    assert told["accelerators"]["candidates"] == CANDIDATES


def test_a_missing_compiler_fails_the_report(machine):
    machine["compiler"]["problem"] = "No C++ compiler was found."
    done = report()
    assert done.exit_code == 1 and "host\tNo C++ compiler was found.\t/usr/bin/g++" in done.stdout


def test_a_missing_torch_is_told(machine, monkeypatch):
    monkeypatch.setattr(facts, "environment", lambda: _environment({"problem": "torch is not installed. Install it"}))
    done = report()
    assert done.exit_code == 1 and "torch is not installed. Install it\n" in done.stdout


def test_an_accelerator_that_cannot_be_had_hides_nothing_else(machine):
    machine["accelerators"].update(problems=["'npu' is no accelerator known here."], in_use=None, capabilities=None)
    done = report()
    assert done.exit_code == 1
    assert "problem: 'npu' is no accelerator known here." in done.stdout and "ReluBuilder\tcpu" in done.stdout


def test_a_broken_builder_package_hides_nothing_else(machine, monkeypatch):
    def fail(devices=()):
        raise ImportError("no module named x")

    monkeypatch.setattr(facts, "offers", fail)
    done = report()
    assert done.exit_code == 1 and "problem: ImportError: no module named x" in done.stdout
    assert "host\tg++ 12\t/usr/bin/g++" in done.stdout


def test_an_unusable_op_fails_the_report(machine, monkeypatch):
    monkeypatch.setattr(facts, "offers", lambda devices=(): [facts.Offer("ReluBuilder", Accelerator(Refusing))])
    done = report()
    assert done.exit_code == 1 and "ReluBuilder\tcpu\tcpu:x86-64\tunusable\tit needs a device" in done.stdout
