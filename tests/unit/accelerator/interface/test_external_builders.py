"""Op builders that other packages add to an accelerator, and the errors for those that cannot be used."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from opforge import OpBuilder
from opforge.accelerator import availability, use_accelerator
from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.devices.null import NullAccelerator
from opforge.accelerator.entry_points import EntryPoint
from opforge.accelerator.interface import external_builders
from opforge.accelerator.interface.accelerator import target_for
from opforge.accelerator.target import Target
from opforge.cli import group
from opforge.cli.prebuild import command
from opforge.errors import BuilderError, OpNotFoundError
from opforge.report import machine

GOOD = """
from opforge import OpBuilder
class GoodBuilder(OpBuilder):
    name, sources, devices = "good", ["good.cpp"], ("cpu", "null")
class HostBuilder(OpBuilder):
    name, sources = "host", ["host.cpp"]
number = 3
"""


@pytest.fixture
def add_builder(tmp_path, monkeypatch):
    """Adds a builder as another package would: add_builder("cpu.GoodBuilder", "added_ops:GoodBuilder")."""
    points = []
    monkeypatch.setattr(
        external_builders, "entry_points", lambda group: [point for point in points if point.group == group]
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "added_ops.py").write_text(GOOD)
    (tmp_path / "added_broken.py").write_text("raise OSError('libquick.so is missing')")
    (tmp_path / "added_leaving.py").write_text("raise SystemExit('no licence')")
    yield lambda name, value, source="quick 2.0": points.append(
        EntryPoint(external_builders.GROUP, name, value, source)
    )
    for name in [name for name in sys.modules if name.startswith("added_")]:
        del sys.modules[name]


def test_an_added_builder_is_offered_by_its_accelerator_only(add_builder):
    add_builder("null.GoodBuilder", "added_ops:GoodBuilder")
    accelerator = NullAccelerator()
    builder = accelerator.create_op_builder("GoodBuilder")
    assert (builder.name, builder.target) == ("good", Target("null"))
    assert accelerator.create_op_builder("GoodBuilder") is builder
    assert accelerator.op_builders()["GoodBuilder"] == "null"
    assert CPUAccelerator().create_op_builder("GoodBuilder") is None


def test_a_builder_added_to_the_host_is_offered_under_every_accelerator(add_builder):
    add_builder("cpu.HostBuilder", "added_ops:HostBuilder [an extra]")
    for accelerator in (NullAccelerator(), CPUAccelerator()):
        assert accelerator.create_op_builder("HostBuilder").target == CPUAccelerator().target()
        assert accelerator.op_builders()["HostBuilder"] == "cpu"


def test_a_builder_for_the_accelerator_is_preferred_to_one_for_the_host(add_builder):
    add_builder("cpu.GoodBuilder", "added_ops:HostBuilder")
    add_builder("null.GoodBuilder", "added_ops:GoodBuilder")
    accelerator = NullAccelerator()
    assert accelerator.create_op_builder("GoodBuilder").name == "good"
    assert accelerator.op_builder_problems() == {}


def test_entry_points_are_read_once_and_only_for_a_name_that_opforge_lacks(monkeypatch):
    reads = []
    monkeypatch.setattr(external_builders, "entry_points", lambda group: reads.append(group) or [])
    accelerator = CPUAccelerator()
    assert accelerator.create_op_builder("CPUAdamBuilder") is not None
    assert reads == []
    assert accelerator.create_op_builder("NoSuchBuilder") is accelerator.create_op_builder("NorThisBuilder") is None
    assert reads == ["opforge.op_builders"]


@pytest.mark.parametrize("owner", ["cpu", "null"])
def test_a_name_of_opforges_is_rejected_with_both_owners(add_builder, owner, caplog):
    add_builder(f"{owner}.CPUAdamBuilder", "added_ops:GoodBuilder")
    accelerator = NullAccelerator()
    assert type(accelerator.create_op_builder("CPUAdamBuilder")).__module__ == "opforge.builders.cpu.adam"
    problem = "the name 'CPUAdamBuilder' belongs to opforge.builders.cpu: quick 2.0 must choose another"
    assert accelerator.op_builder_problems() == {f"{owner}.CPUAdamBuilder of quick 2.0": problem}
    assert f"the op builder {owner}.CPUAdamBuilder of quick 2.0 is ignored: {problem}" in caplog.text
    with pytest.raises(OpNotFoundError) as raised:
        accelerator.load_op("NoSuchBuilder")
    assert f"\nRejected:\n  - {owner}.CPUAdamBuilder of quick 2.0: {problem}" in str(raised.value)


def test_the_second_of_two_packages_with_one_name_is_rejected(add_builder):
    add_builder("cpu.HostBuilder", "added_ops:HostBuilder")
    add_builder("cpu.HostBuilder", "added_ops:GoodBuilder", "slow 1.0")
    accelerator = CPUAccelerator()
    assert accelerator.create_op_builder("HostBuilder").name == "host"
    assert accelerator.op_builder_problems() == {
        "cpu.HostBuilder of slow 1.0": "the name 'HostBuilder' belongs to quick 2.0: slow 1.0 must choose another"
    }


def test_a_builder_of_another_accelerator_is_named_with_it_in_the_error(add_builder):
    add_builder("null.GoodBuilder", "added_ops:GoodBuilder")
    with pytest.raises(OpNotFoundError) as raised:
        CPUAccelerator().load_op("GoodBuilder")
    assert "\nRejected:\n  - null.GoodBuilder of quick 2.0: it is for the accelerator 'null'" in str(raised.value)
    with pytest.raises(OpNotFoundError) as raised:
        CPUAccelerator().load_op("OtherBuilder")
    assert "Rejected" not in str(raised.value)


def test_a_builder_of_an_accelerator_that_does_not_exist_needs_attention(add_builder, monkeypatch):
    monkeypatch.setattr(availability, "entry_points", external_builders.entry_points)
    for name in ("cdua.GoodBuilder", "CPU.GoodBuilder", "quick.GoodBuilder", "xpu.GoodBuilder", "no-class"):
        add_builder(name, "added_ops:GoodBuilder")
    assert availability.entry_point_problems([]) == [
        "the op builder cdua.GoodBuilder of quick 2.0 is ignored: there is no accelerator 'cdua'. Did you mean 'cuda'?",
        "the op builder CPU.GoodBuilder of quick 2.0 is ignored: there is no accelerator 'CPU'. Did you mean 'cpu'?",
        "the op builder quick.GoodBuilder of quick 2.0 is ignored: there is no accelerator 'quick'. Install the package"
        " that adds it.",
    ]


@pytest.mark.parametrize("name", ["HostBuilder", "cpu.", "cpu.Host-Builder", "cpu.ops.HostBuilder"])
def test_a_name_of_the_wrong_form_is_rejected_with_the_expected_form(add_builder, name):
    add_builder(name, "added_ops:HostBuilder")
    assert CPUAccelerator().op_builder_problems() == {
        f"{name} of quick 2.0": "expected a name such as 'cpu.MyOpBuilder': the accelerator's, then the class's"
    }


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            "added_broken:HostBuilder",
            "cannot be imported: OSError: libquick.so is missing. Fix that package, or uninstall",
        ),
        ("added_leaving:HostBuilder", "cannot be imported: SystemExit: no licence. Fix"),
        ("no_such_package:HostBuilder", "cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("added_ops:NoSuch", "cannot be imported: AttributeError: module 'added_ops' has no attribute 'NoSuch'"),
        ("added_ops", "cannot be imported: AttributeError"),
        ("added_ops:number", "is 3, not a builder. Name a subclass of opforge.OpBuilder there"),
        ("json:JSONDecoder", "is <class 'json.decoder.JSONDecoder'>, not a builder"),
    ],
)
def test_a_broken_builder_is_an_error_and_hides_no_other(add_builder, value, problem):
    add_builder("cpu.BrokenBuilder", value)
    add_builder("cpu.HostBuilder", "added_ops:HostBuilder")
    accelerator = CPUAccelerator()
    with pytest.raises(BuilderError) as raised:
        accelerator.create_op_builder("BrokenBuilder")
    assert str(raised.value).startswith("the op builder cpu.BrokenBuilder of quick 2.0: " + value)
    assert problem in str(raised.value)
    assert accelerator.create_op_builder("HostBuilder").name == "host"
    with pytest.raises(OpNotFoundError) as missing:
        accelerator.load_op("NoSuchBuilder")
    assert "\n  - HostBuilder: " in str(missing.value)
    assert "\n  - BrokenBuilder: broken: BuilderError: the op builder cpu.BrokenBuilder" in str(missing.value)


def test_the_commands_list_added_builders_and_report_their_problems(add_builder, monkeypatch):
    add_builder("cpu.HostBuilder", "added_ops:HostBuilder")
    add_builder("cpu.BrokenBuilder", "added_broken:HostBuilder")
    add_builder("cpu.CPUAdamBuilder", "added_ops:GoodBuilder")
    monkeypatch.setenv("OPFORGE_ACCELERATOR", "cpu")
    monkeypatch.setattr(machine, "compilers", list)
    listed = json.loads(CliRunner().invoke(command.command, ["--list", "--json", "--target", "cpu"]).stdout)
    assert {"name": "HostBuilder", "accelerator": "cpu"} in listed
    assert [entry["name"] for entry in listed].count("CPUAdamBuilder") == 1
    done = CliRunner().invoke(group, ["report", "--json"])
    report = json.loads(done.stdout)
    assert done.exit_code == 1
    (left_out,) = report["ops_left_out"]
    assert left_out.startswith("the op builder cpu.CPUAdamBuilder of quick 2.0 is ignored: the name 'CPUAdamBuilder'")
    (broken,) = [op for op in report["ops"] if op["name"] == "BrokenBuilder"]
    assert broken["state"] == "unusable" and "libquick.so is missing" in broken["reasons"][0]
    printed = CliRunner().invoke(group, ["report"]).stdout
    assert "problem: the op builder cpu.CPUAdamBuilder of quick 2.0 is ignored" in printed


def test_the_gate_of_an_op_for_the_host_sees_the_hosts_capabilities():
    class PickyBuilder(OpBuilder):
        name, sources = "picky", ["x.cpp"]

        def gate(self, can):
            return [f"the gate saw {can.device}"]

    with use_accelerator(NullAccelerator()) as accelerator:
        builder = PickyBuilder(target_for(PickyBuilder, accelerator.target()))
        assert list(builder.is_compatible().reasons) == ["the gate saw cpu"]
