"""Which builders the names and targets on a command line select."""

from __future__ import annotations

import json
import re
import sys

import click
import pytest
from click.testing import CliRunner
from support import sample_ops, text_files

from opforge.accelerator.target import Target
from opforge.cli import group, selection
from opforge.errors import BuilderError, OpIncompatibleError, UnknownAcceleratorError
from opforge.report import ops


class FakeAccelerator:
    """An accelerator of this name that offers these builder classes, by their names."""

    def __init__(self, name, builders):
        self.name, self.builders = name, builders

    def target(self):
        return Target(self.name, ("x86-64",) if self.name == "cpu" else ("sm_90",))

    def get_op_builder(self, name):
        return self.builders[name]


@pytest.fixture
def offered(monkeypatch, tmp_path):
    """A machine whose accelerator is `cuda`; one op is offered by `cuda` and by the CPU."""
    adam = sample_ops.plain_op(tmp_path, "cpu_adam")
    fused = sample_ops.plain_op(tmp_path, "fused", devices=("cuda", "cpu"))
    accelerators = [
        FakeAccelerator("cuda", {"FusedBuilder": fused}),
        FakeAccelerator("cpu", {"CPUAdamBuilder": adam, "FusedBuilder": fused}),
    ]

    def offers(devices=()):
        devices = list(devices) or ["cuda", "cpu"]
        unknown = [device for device in devices if device not in ("cuda", "cpu")]
        if unknown:
            raise UnknownAcceleratorError(unknown[0], ["cpu", "cuda"], "the target")
        requested = [accelerator for accelerator in accelerators if accelerator.name in devices]
        return [ops.OfferedOp(name, accelerator) for accelerator in requested for name in accelerator.builders]

    monkeypatch.setattr(ops, "offers", offers)


def selected(*names, targets=()):
    ops = selection.select(names, [Target.parse(target) for target in targets])
    return [(op.name, str(op.target)) for op in ops]


@pytest.mark.parametrize(
    "name", ["CPUAdamBuilder", "CPUAdam", "cpuadam", "cpu_adam", "cpu-adam", "op:CPUAdam", "op:cpu_adam"]
)
def test_a_name_in_any_form(offered, name):
    assert selected(name) == [("CPUAdamBuilder", "cpu:x86-64")]


def test_without_names_every_op_is_selected_and_none_is_required(offered):
    assert selected() == [
        ("FusedBuilder", "cuda:sm_90"),
        ("CPUAdamBuilder", "cpu:x86-64"),
        ("FusedBuilder", "cpu:x86-64"),
    ]
    assert not any(op.named for op in selection.select([]))
    assert all(op.named for op in selection.select([], [Target.parse("cpu")]))


def test_the_accelerator_in_use_comes_before_the_cpu(offered):
    assert selected("fused") == [("FusedBuilder", "cuda:sm_90")]


def test_an_op_is_selected_for_every_target_whose_accelerator_offers_it(offered):
    assert selected("fused", "cpuadam", targets=["cpu:x86-64-v3", "cuda:sm_80"]) == [
        ("FusedBuilder", "cuda:sm_80"),
        ("FusedBuilder", "cpu:x86-64-v3"),
        ("CPUAdamBuilder", "cpu:x86-64-v3"),
    ]


def test_an_op_for_the_host_in_a_devices_own_table_is_built_for_the_host(tmp_path, monkeypatch):
    host = sample_ops.plain_op(tmp_path, "acme_host")
    offer = ops.OfferedOp("HostBuilder", FakeAccelerator("acme", {"HostBuilder": host}))
    monkeypatch.setattr(ops, "offers", lambda devices=(): [offer])
    (op,) = selection.select(["HostBuilder"])
    assert op.builder().target.device == "cpu"
    (typed,) = selection.select(["HostBuilder"], [Target("acme")])
    with pytest.raises(OpIncompatibleError, match="it is an op for cpu, not for acme"):
        typed.builder()


def test_a_name_that_is_typed_twice_counts_once(offered):
    assert len(selected("CPUAdam", "cpu_adam")) == 1


def test_an_unknown_name_is_refused_with_the_nearest_names(offered):
    with pytest.raises(click.UsageError) as caught:
        selection.select(["CPUAdm"])
    assert caught.value.message == (
        "'CPUAdm' is not an op that is offered here. Did you mean CPUAdamBuilder?"
        " Offered: FusedBuilder, CPUAdamBuilder. A class of your own is named by package.module:Class."
    )
    with pytest.raises(click.UsageError, match=r"'CPUAdam' is not .* offered for cuda\. .*Offered: FusedBuilder\."):
        selection.select(["CPUAdam"], [Target.parse("cuda:sm_90")])


def test_a_class_of_a_module_with_the_name_of_the_kind_is_selected(offered, tmp_path, monkeypatch):
    text_files.write(tmp_path, "op.py", OWN_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "op", None)  # removed afterwards
    del sys.modules["op"]
    assert [op.name for op in selection.select(["op:Relu"])] == ["op:Relu"]
    with pytest.raises(click.UsageError, match=r"^'CPUAdm' is not an op that is offered here\. Did you mean CPUAdam"):
        selection.select(["op:CPUAdm"])


def test_an_unknown_device_is_wrong_usage(offered):
    with pytest.raises(click.UsageError, match="'npu', requested by the target, is not a known accelerator"):
        selection.select([], [Target.parse("npu")])


def test_amds_devices_are_those_of_the_accelerator_cuda():
    both = ["cuda:sm_90", "hip:gfx942", "cpu:x86-64"]
    assert selected("FusedAdam", "TritonRMSNorm", targets=both) == [
        ("FusedAdamBuilder", "cuda:sm_90"),
        ("FusedAdamBuilder", "hip:gfx942"),
        ("FusedAdamBuilder", "cpu:x86-64"),
        ("TritonRMSNormBuilder", "cuda:sm_90"),
        ("TritonRMSNormBuilder", "hip:gfx942"),
    ]


def test_a_device_in_another_letter_case_is_refused_by_the_builder():
    (op,) = selection.select(["FusedAdam"], [Target.parse("CUDA:sm_90")])
    with pytest.raises(OpIncompatibleError, match="it is an op for cuda, hip, not for CUDA"):
        op.builder()


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Returns a function that writes a module into the working folder and returns the module's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = sample_ops.unique_name("module")

    def write(text):
        text_files.write(tmp_path, f"{name}.py", text)
        return name

    yield write
    sys.modules.pop(name, None)


OWN_MODULE = """\
from opforge import OpBuilder

class Relu(OpBuilder):
    name, sources = "relu", ["relu.cpp"]

class OpenCLRelu(Relu):
    devices = ("opencl",)

class Theirs:
    def load(self): ...

other = 3
"""


def test_a_class_of_the_users_own(write_module):
    name = write_module(OWN_MODULE)
    (op,) = selection.select([f"{name}:Relu"])
    assert op.target is None and op.named and op.builder().name == "relu"
    assert selected(f"{name}:Relu", targets=["cpu:x86-64", "cpu:aarch64"])[1] == (f"{name}:Relu", "cpu:aarch64")


def test_a_device_without_an_accelerator_is_accepted_for_an_own_class_that_declares_it(write_module):
    import_path = f"{write_module(OWN_MODULE)}:OpenCLRelu"
    both = ["opencl", "cpu:x86-64"]
    assert selected(import_path, "CPUAdam", targets=both) == [(import_path, "opencl"), ("CPUAdamBuilder", "cpu:x86-64")]
    with pytest.raises(click.UsageError, match=r"'CPUAdam' is not .* offered for opencl\. None is offered\."):
        selected(import_path, "CPUAdam", targets=["opencl"])
    with pytest.raises(click.UsageError, match="'npx', requested by the target, is not a known accelerator"):
        selected(import_path, "CPUAdam", targets=["npx"])


def test_a_class_that_does_not_exist_is_refused_with_the_classes_that_do(write_module):
    name = write_module(OWN_MODULE)
    with pytest.raises(click.UsageError, match=f"the module '{name}' has no 'Gelu'. It has: OpenCLRelu, Relu."):
        selection.select([f"{name}:Gelu"])
    for other in ("other", "OpBuilder.load"):
        with pytest.raises(click.UsageError, match=f"'{name}' has no .*{other}'. It has: OpenCLRelu, Relu."):
            selection.select([f"{name}:{other}"])


def test_a_module_that_does_not_exist_is_refused():
    with pytest.raises(
        click.UsageError, match=r"no_such.one:Relu: there is no module 'no_such' in this folder or on PYTHONPATH\."
    ):
        selection.select(["no_such.one:Relu"])


@pytest.mark.parametrize(
    ("typed", "example"),
    [
        ("ops.py:Relu", "ops:Relu"),
        ("./my/ops.py:Relu", "my.ops:Relu"),
        ("my/ops:Relu", "my.ops:Relu"),
        (":Relu", "package.module:Relu"),
        (".ops:Relu", "ops:Relu"),
        (".", "package.module:Class"),
        ("ops.py:", "ops:Class"),
    ],
)
def test_a_file_in_place_of_a_module_is_refused_with_the_name_to_type(typed, example):
    problem = f"{typed!r} does not name a module: expected package.module:Class, such as {example}"
    with pytest.raises(click.UsageError, match=f"^{re.escape(problem)}$"):
        selection.own_class(typed)


def test_a_module_with_a_missing_dependency_is_refused(write_module):
    name = write_module("import no_such_module")
    with pytest.raises(BuilderError, match=r"its module needs 'no_such_module', which is not installed\. Install it"):
        selection.select([f"{name}:Relu"])


def test_a_module_without_a_module_of_its_own_package_is_not_told_to_install_it(tmp_path, write_module):
    write_module("")
    package = sample_ops.unique_name("package")
    text_files.write(tmp_path, f"{package}/__init__.py", "")
    text_files.write(tmp_path, f"{package}/ops.py", f"import {package}.version")
    with pytest.raises(BuilderError, match="Add it to the package, or correct the import"):
        selection.select([f"{package}.ops:Relu"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise ValueError('a full stop.')", r"ValueError: a full stop\. Fix the module"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),  # otherwise the command succeeds, and builds nothing
    ],
)
def test_a_module_that_fails_to_import_is_refused(write_module, text, problem):
    name = write_module(text)
    with pytest.raises(BuilderError, match=f"importing its module failed: {problem}"):
        selection.select([f"{name}:Relu"])


def test_what_a_module_prints_is_not_in_the_output_of_the_command(write_module):
    name = write_module("print('loud')\n" + OWN_MODULE)
    done = CliRunner().invoke(group, ["cache", "explain", f"{name}:Relu", "--json"])
    assert done.stderr.startswith("loud\n") and json.loads(done.stdout)["error"] == "SourceNotFoundError"


def test_a_builder_of_another_hierarchy_is_refused(write_module):
    (op,) = selection.select([f"{write_module(OWN_MODULE)}:Theirs"])
    with pytest.raises(BuilderError, match=r"it is not a subclass of opforge\.OpBuilder"):
        op.builder()


def test_a_device_that_the_op_does_not_declare_is_refused(write_module):
    (op,) = selection.select([f"{write_module(OWN_MODULE)}:Relu"], [Target.parse("cuda:sm_90")])
    with pytest.raises(OpIncompatibleError, match="it is an op for cpu, not for cuda"):
        op.builder()


def test_targets_and_levels_are_joined_and_each_counts_once():
    targets = selection.all_targets([Target.parse("cpu:x86-64-v3"), Target.parse("cuda")], ["x86-64", "x86-64-v3"])
    assert [str(target) for target in targets] == ["cpu:x86-64-v3", "cuda", "cpu:x86-64"]


def test_a_class_is_selected_for_the_targets_that_it_declares(tmp_path, monkeypatch):
    name = sample_ops.unique_name("mixed")
    (tmp_path / f"{name}.py").write_text(
        "from opforge import OpBuilder\n"
        "class Gpu(OpBuilder):\n    name, sources, devices = 'gpu', ['a.cu'], ('cuda',)\n"
        "class Cpu(OpBuilder):\n    name, sources = 'cpu', ['a.cpp']\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    targets = [Target.parse("cuda:sm_80"), Target.parse("cpu:x86-64")]
    ops = [(op.name, str(op.target)) for op in selection.select([f"{name}:Gpu", f"{name}:Cpu"], targets)]
    assert ops == [(f"{name}:Gpu", "cuda:sm_80"), (f"{name}:Cpu", "cpu:x86-64")]
    (refused,) = selection.select([f"{name}:Gpu"], targets[1:])
    with pytest.raises(OpIncompatibleError, match="it is an op for cuda, not for cpu"):
        refused.builder()
