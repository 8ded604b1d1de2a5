"""`opforge check`: right, wrong and crashing ops are lines of one table, and what was checked is remembered."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from support import child_processes, text_files
from support.processes import forked_python

import opforge
from opforge.ops.cases import CASES, load_cases
from opforge.testing import OpContract

pytestmark = pytest.mark.compile

SOURCE = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <cstdlib>
using torch::stable::Tensor;
Tensor twice(const Tensor& x) {
  Tensor y = torch::stable::empty_like(x);
  const float* from = static_cast<const float*>(x.const_data_ptr());
  float* to = static_cast<float*>(y.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = 2 * from[i];
  return y;
}
Tensor crash(const Tensor& x) { std::abort(); }
Tensor meta(const Tensor& x) { return torch::stable::empty_like(x); }
STABLE_TORCH_LIBRARY(their_ops, m) {
  m.def("twice(Tensor x) -> Tensor");
  m.def("crash(Tensor x) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(their_ops, CPU, m) {
  m.impl("twice", TORCH_BOX(&twice));
  m.impl("crash", TORCH_BOX(&crash));
}
STABLE_TORCH_LIBRARY_IMPL(their_ops, Meta, m) {
  m.impl("twice", TORCH_BOX(&meta));
  m.impl("crash", TORCH_BOX(&meta));
}
"""
BUILDERS = """\
import os
from opforge import OpBuilder

class RightBuilder(OpBuilder):  # the others are the same op, which is then built once
    name, sources, cases = "their_ops", ["twice.cpp"], "their_ops.cases:TWICE"

class WrongBuilder(RightBuilder):
    cases = "their_ops.cases:WRONG"

class CrashingBuilder(RightBuilder):
    cases = ""  # an entry point names them

class UnknownBuilder(RightBuilder):
    cases = ""

    def gate(self, capabilities):
        with open(os.environ["ASKED_BY"], "a") as file:
            print(os.getpid(), os.getppid(), file=file)
        return []
"""
CASES_TEXT = """\
from dataclasses import replace
from opforge.ops.cases import Case

TWICE = Case(
    "twice",
    lambda place: (place.draw(*place.shape),),
    "twice",
    reference=lambda x: 2 * x,
    shapes=((0, 8), (3, 15), (2, 1025)),
    refused_dtypes=(),
    strided=False,
)
WRONG = replace(TWICE, reference=lambda x: 2 * x + 1)
CRASHING = replace(TWICE, function="crash")
"""
POINTS = """\
[opforge.op_builders]
cpu.RightBuilder = their_ops.builders:RightBuilder
cpu.WrongBuilder = their_ops.builders:WrongBuilder
cpu.CrashingBuilder = their_ops.builders:CrashingBuilder
cpu.UnknownBuilder = their_ops.builders:UnknownBuilder
[opforge.cases]
CrashingBuilder = their_ops.cases:CRASHING
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The folder of an installed package with ops that are right, wrong, crash, and have no check."""
    folder = tmp_path_factory.mktemp("site")
    own = folder / "their_ops"
    own.mkdir()
    text_files.write(own, "twice.cpp", SOURCE)
    text_files.write(own, "__init__.py", "")
    text_files.write(own, "builders.py", BUILDERS)
    text_files.write(own, "cases.py", CASES_TEXT)
    metadata = folder / "their_ops-1.0.dist-info"
    metadata.mkdir()
    text_files.write(metadata, "METADATA", "Metadata-Version: 2.1\nName: their-ops\nVersion: 1.0\n")
    text_files.write(metadata, "entry_points.txt", POINTS)
    return folder


@pytest.fixture
def check(package):
    """Runs `opforge check` with the package installed."""

    def run(*arguments, **variables):
        environment = child_processes.environment()
        path = os.pathsep.join([str(package), environment["PYTHONPATH"]])
        env = child_processes.environment(PYTHONPATH=path, **{"ASKED_BY": os.devnull, **variables})
        words = [os.path.join(forked_python.commands(), "opforge"), "check", *arguments]
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)

    return run


def test_wrong_and_crashing_ops_are_lines_beside_the_right_ones(check, own_store, precompiled, tmp_path):
    asked_by = tmp_path / "asked_by"
    done = check("right", "wrong", "crashing", "unknown", "--json", ASKED_BY=str(asked_by))
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    rows = {row["name"]: row for row in report["results"]}
    assert [row["state"] for row in report["results"]] == ["crashed", "ok", "unchecked", "failed"]
    right, wrong, crashing = rows["RightBuilder"], rows["WrongBuilder"], rows["CrashingBuilder"]
    assert right["tests"] == 9 and right["promises"] == [
        "repeats",
        "threads",
        "alignment",
        "NaN",
        "infinities",
        "accuracy",
    ]
    assert (
        right["error_units"] == right["eager_units"] == 0.0
        and right["load_ms"] > 0
        and right["device"] == report["machine"]["cpu"]
    )
    assert wrong["stage"] == "reference"
    text = "test_results_agree_with_float64: twice, for shape (3, 15) and float32: result 0 differs"
    assert text in wrong["reason"]
    assert (crashing["stage"], crashing["reason"]) == ("reference", "it was ended by signal 6 (Aborted)")
    assert rows["UnknownBuilder"]["reason"] == "it has no reference: it was loaded, and compared with nothing"

    asked = [line.split() for line in asked_by.read_text().splitlines()]
    assert len(asked) >= 2 and len({parent for _child, parent in asked}) == 1
    assert not {child for child, _parent in asked} & {parent for _child, parent in asked}, (
        "a device that the command itself opens cannot be used by the children that it forks later"
    )

    assert right["package"] == "their-ops 1.0"
    listed = {row["name"]: row for row in json.loads(check("--list", "--json").stdout)}
    assert (listed["RightBuilder"]["package"], listed["CPUAdamBuilder"]["package"]) == ("their-ops 1.0", "")
    of_package = json.loads(check("--list", "--json", "their_ops").stdout)
    assert {row["name"] for row in of_package} == {*rows}, "a package's name stands for all of its ops"
    assert listed["RightBuilder"]["state"] == "ok" and listed["RightBuilder"]["device"] == right["device"]
    assert listed["CrashingBuilder"]["state"] == "crashed"
    assert "state" not in listed["CPUAdamBuilder"]


@pytest.mark.long("imports torch three times for what the tests beside it compare")
@pytest.mark.usefixtures("builds_are_shared")
def test_one_of_our_ops_is_compared_and_measured(check):
    done = check("CPUAdam", "--json")
    (row,) = json.loads(done.stdout)["results"]
    assert (row["state"], done.returncode) == ("ok", 0) and "batch" in row["promises"], row
    assert row["gb_per_s"] > 0 and row["of_copy"] > 0 and row["first_ms"] > 0


class Altered:
    """A loaded op with other functions in place of some of its own."""

    def __init__(self, loaded, **others):
        self._loaded = loaded
        self.__dict__.update(others)

    def __getattr__(self, name):
        return getattr(self._loaded, name)


def does_nothing(*_arguments):
    """Returns what a C function does that has succeeded."""
    return 0


def unlocked(op):
    """Returns pin_handle's class, whose memory is not locked."""
    return lambda: Altered(op.pin_handle(), new_cpu_locked_tensor=lambda count, like: like.new_zeros(count))


@pytest.mark.usefixtures("builds_are_shared")
@pytest.mark.parametrize(
    ("name", "some", "function", "wrong", "text"),
    [
        ("PinMemoryBuilder", "", "pin_handle", unlocked, "the memory is not zero, or not locked"),
        (
            "RaggedOpsBuilder",
            "keys and values to pages",
            "linear_kv_copy",
            lambda _op: does_nothing,
            "keys and values to pages",
        ),
        (
            "RaggedOpsBuilder",
            "attention over pages",
            "flash_attn_by_atoms",
            lambda _op: does_nothing,
            "elements differ",
        ),
        (
            "RaggedOpsBuilder",
            "tokens from two experts",
            "moe_gather",
            lambda _op: does_nothing,
            "it has no schema: give positions",
        ),
        (
            "RaggedUtilsBuilder",
            "",
            "allocate_view_on",
            lambda op: lambda like, buffer, offset: op.allocate_view_on(like, buffer, offset + 4),
            "the view has other bytes",
        ),
        (
            "ShareMemCommBuilder",
            "",
            "shm_all_reduce",
            lambda _op: does_nothing,
            "all_reduce of 1 torch.float32 on rank 0",
        ),
        (
            "TransformerBuilder",
            "norms before, float32",
            "backward_fp32",
            lambda op: lambda *arguments: [2 * gradient for gradient in op.backward_fp32(*arguments)],
            "norms before, float32, for shape .*: result 1 differs",
        ),
    ],
)
def test_a_wrong_result_fails_the_check_of_its_op(name, some, function, wrong, text):
    """Of the ops as they are tests/contract/test_ops.py says that they pass; of a large one, some cases are tried."""
    op = opforge.get_accelerator().create_op_builder(name).load()
    cases = [case for case in load_cases(CASES[name]) if some in case.name]
    with pytest.raises(AssertionError, match=text):
        OpContract.of(cases, Altered(op, **{function: wrong(op)}), "cpu").check()


def test_an_unknown_op_and_a_wrong_timeout_are_refused(check):
    done = check("NoSuchOp")
    assert done.returncode == 2 and "'NoSuchOp' is not an op that is offered here." in done.stderr
    assert "A class of your own is named by package.module:Class." in done.stderr
    done = check("--timeout", "nan")
    assert done.returncode == 2 and "Invalid value for --timeout: nan is not a number of seconds" in done.stderr
