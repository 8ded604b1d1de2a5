"""The names and targets that are typed, and the builders that they stand for."""

from __future__ import annotations

import sys

import click
import pytest
from support import sample_ops, text_files

from opforge.accelerator.target import Target
from opforge.cli import selection
from opforge.errors import BuilderError, OpIncompatibleError, UnknownAcceleratorError
from opforge.report import facts


class Accelerator:
    """Offers two ops of made-up builders."""

    def __init__(self, name, ops):
        self.name, self.ops = name, ops

    def target(self):
        return Target(self.name, ("x86-64",) if self.name == "cpu" else ("sm_90",))

    def get_op_builder(self, name):
        return self.ops[name]


@pytest.fixture
def offered(monkeypatch, tmp_path):
    """A machine whose accelerator is `cuda`, which shares one op's name with the CPU."""
    adam = sample_ops.plain_op(tmp_path, "cpu_adam")
    fused = sample_ops.plain_op(tmp_path, "fused", devices=("cuda", "cpu"))
    machines = [
        Accelerator("cuda", {"FusedBuilder": fused}),
        Accelerator("cpu", {"CPUAdamBuilder": adam, "FusedBuilder": fused}),
    ]

    def offers(devices=()):
        devices = list(devices) or ["cuda", "cpu"]
        unknown = [one for one in devices if one not in ("cuda", "cpu")]
        if unknown:
            raise UnknownAcceleratorError(unknown[0], ["cpu", "cuda"], "the target")
        return [facts.Offer(name, one) for one in machines if one.name in devices for name in one.ops]

    monkeypatch.setattr(facts, "offers", offers)


def chosen(*names, targets=()):
    return [(one.name, str(one.target)) for one in selection.select(names, [Target.parse(one) for one in targets])]


@pytest.mark.parametrize("name", ["CPUAdamBuilder", "CPUAdam", "cpuadam", "cpu_adam", "cpu-adam", "CPUADAMBUILDER"])
def test_a_name_in_any_form(offered, name):
    assert chosen(name) == [("CPUAdamBuilder", "cpu:x86-64")]


def test_without_names_all_are_chosen_and_none_is_asked_for(offered):
    assert chosen() == [
        ("FusedBuilder", "cuda:sm_90"),
        ("CPUAdamBuilder", "cpu:x86-64"),
        ("FusedBuilder", "cpu:x86-64"),
    ]
    assert not any(one.named for one in selection.select([]))
    assert all(one.named for one in selection.select([], [Target.parse("cpu")]))


def test_the_accelerator_in_use_comes_before_the_cpu(offered):
    assert chosen("fused") == [("FusedBuilder", "cuda:sm_90")]


def test_every_target_whose_accelerator_offers_the_op(offered):
    assert chosen("fused", "cpuadam", targets=["cpu:x86-64-v3", "cuda:sm_80"]) == [
        ("FusedBuilder", "cuda:sm_80"),
        ("FusedBuilder", "cpu:x86-64-v3"),
        ("CPUAdamBuilder", "cpu:x86-64-v3"),
    ]


def test_a_name_that_is_given_twice_counts_once(offered):
    assert len(chosen("CPUAdam", "cpu_adam")) == 1


def test_an_unknown_name_brings_the_near_ones(offered):
    with pytest.raises(click.UsageError) as caught:
        selection.select(["CPUAdm"])
    assert caught.value.message == (
        "no op 'CPUAdm' is known here. Did you mean CPUAdamBuilder? Offered: FusedBuilder, CPUAdamBuilder."
        " One of your own: package.module:Class."
    )
    with pytest.raises(click.UsageError, match=r"no op 'CPUAdam' is known for cuda\. .*Offered: FusedBuilder\."):
        selection.select(["CPUAdam"], [Target.parse("cuda:sm_90")])


def test_an_unknown_device_is_wrong_usage(offered):
    with pytest.raises(click.UsageError, match="'npu', asked for by the target, is no accelerator known here"):
        selection.select([], [Target.parse("npu")])


def test_amds_devices_are_those_of_the_accelerator_cuda():
    both = ["cuda:sm_90", "hip:gfx942", "cpu:x86-64"]
    assert chosen("FusedAdam", "TritonRMSNorm", targets=both) == [
        ("FusedAdamBuilder", "cuda:sm_90"),
        ("FusedAdamBuilder", "hip:gfx942"),
        ("FusedAdamBuilder", "cpu:x86-64"),
        ("TritonRMSNormBuilder", "cuda:sm_90"),
        ("TritonRMSNormBuilder", "hip:gfx942"),
    ]


def test_a_device_in_other_letters_is_no_silence():
    (one,) = selection.select(["FusedAdam"], [Target.parse("CUDA:sm_90")])
    with pytest.raises(OpIncompatibleError, match="it is an op for cuda, hip, not for CUDA"):
        one.builder()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module into the working folder; gives the name under which it can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = sample_ops.unique_name("module")

    def write(text):
        text_files.write(tmp_path, f"{name}.py", text)
        return name

    yield write
    sys.modules.pop(name, None)


OWN = "from opforge import OpBuilder\nclass Relu(OpBuilder):\n    name, sources = 'relu', ['relu.cpp']\nother = 3\n"


def test_a_class_of_ones_own(module):
    name = module(OWN)
    (one,) = selection.select([f"{name}:Relu"])
    assert one.target is None and one.named and one.builder().name == "relu"
    assert chosen(f"{name}:Relu", targets=["cpu:x86-64", "cpu:aarch64"])[1] == (f"{name}:Relu", "cpu:aarch64")


def test_a_device_without_an_accelerator_serves_a_class_that_is_for_it(module):
    place = f"{module(OWN + 'class Cl(Relu):' + chr(10) + '    devices = (' + repr('opencl') + ',)')}:Cl"
    both = ["opencl", "cpu:x86-64"]
    assert chosen(place, "CPUAdam", targets=both) == [(place, "opencl"), ("CPUAdamBuilder", "cpu:x86-64")]
    with pytest.raises(click.UsageError, match=r"no op 'CPUAdam' is known for opencl\. None is offered\."):
        chosen(place, "CPUAdam", targets=["opencl"])
    with pytest.raises(click.UsageError, match="'npx', asked for by the target, is no accelerator known here"):
        chosen(place, "CPUAdam", targets=["npx"])


def test_a_class_that_is_not_there_brings_those_that_are(module):
    name = module(OWN)
    with pytest.raises(click.UsageError, match=f"the module '{name}' has no 'Gelu'. It has: Relu."):
        selection.select([f"{name}:Gelu"])


def test_a_module_that_is_not_there():
    with pytest.raises(
        click.UsageError, match=r"no_such.one:Relu: there is no module 'no_such', here or on PYTHONPATH\."
    ):
        selection.select(["no_such.one:Relu"])


def test_a_module_that_needs_another(module):
    name = module("import no_such_module")
    with pytest.raises(BuilderError, match="its module needs 'no_such_module', which is not installed"):
        selection.select([f"{name}:Relu"])


def test_a_module_that_is_broken(module):
    name = module("1 / 0")
    with pytest.raises(BuilderError, match="importing its module failed: ZeroDivisionError: division by zero"):
        selection.select([f"{name}:Relu"])


def test_what_is_no_builder_is_refused(module):
    (one,) = selection.select([f"{module(OWN)}:other"])
    with pytest.raises(BuilderError, match=r"it is no subclass of opforge\.OpBuilder"):
        one.builder()


def test_a_device_that_the_op_is_not_for_is_refused(module):
    (one,) = selection.select([f"{module(OWN)}:Relu"], [Target.parse("cuda:sm_90")])
    with pytest.raises(OpIncompatibleError, match="it is an op for cpu, not for cuda"):
        one.builder()


def test_targets_and_levels_are_joined_and_each_counts_once():
    found = selection.all_targets([Target.parse("cpu:x86-64-v3"), Target.parse("cuda")], ["x86-64", "x86-64-v3"])
    assert [str(one) for one in found] == ["cpu:x86-64-v3", "cuda", "cpu:x86-64"]


def test_a_class_is_built_for_those_targets_that_it_is_for(tmp_path, monkeypatch):
    name = sample_ops.unique_name("mixed")
    (tmp_path / f"{name}.py").write_text(
        "from opforge import OpBuilder\n"
        "class Gpu(OpBuilder):\n    name, sources, devices = 'gpu', ['a.cu'], ('cuda',)\n"
        "class Cpu(OpBuilder):\n    name, sources = 'cpu', ['a.cpp']\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    targets = [Target.parse("cuda:sm_80"), Target.parse("cpu:x86-64")]
    found = [(one.name, str(one.target)) for one in selection.select([f"{name}:Gpu", f"{name}:Cpu"], targets)]
    assert found == [(f"{name}:Gpu", "cuda:sm_80"), (f"{name}:Cpu", "cpu:x86-64")]
    (wrong,) = selection.select([f"{name}:Gpu"], targets[1:])
    with pytest.raises(OpIncompatibleError, match="it is an op for cuda, not for cpu"):
        wrong.builder()
