"""Op builders that other packages add to an accelerator, and what is said of those that cannot be used."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from opforge import OpBuilder
from opforge.accelerator import select, use_accelerator
from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.devices.null import NullAccelerator
from opforge.accelerator.entry_points import EntryPoint
from opforge.accelerator.interface import external_builders
from opforge.accelerator.interface.op_builders import target_for
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
def add(tmp_path, monkeypatch):
    """Adds a builder as another package would: add("cpu.GoodBuilder", "added_ops:GoodBuilder")."""
    points = []
    monkeypatch.setattr(external_builders, "entry_points", lambda group: [one for one in points if one.group == group])
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "added_ops.py").write_text(GOOD)
    (tmp_path / "added_broken.py").write_text("raise OSError('libquick.so is missing')")
    (tmp_path / "added_leaving.py").write_text("raise SystemExit('no licence')")
    yield lambda name, value, source="quick 2.0": points.append(
        EntryPoint(external_builders.GROUP, name, value, source)
    )
    for name in [name for name in sys.modules if name.startswith("added_")]:
        del sys.modules[name]


def test_an_added_builder_is_one_of_the_accelerators(add):
    add("null.GoodBuilder", "added_ops:GoodBuilder")
    accelerator = NullAccelerator()
    builder = accelerator.create_op_builder("GoodBuilder")
    assert (builder.name, builder.target) == ("good", Target("null"))
    assert accelerator.create_op_builder("GoodBuilder") is builder
    assert accelerator.op_builders()["GoodBuilder"] == "null"
    assert CPUAccelerator().create_op_builder("GoodBuilder") is None


def test_a_builder_added_to_the_host_is_offered_under_every_accelerator(add):
    add("cpu.HostBuilder", "added_ops:HostBuilder [an extra]")
    for accelerator in (NullAccelerator(), CPUAccelerator()):
        assert accelerator.create_op_builder("HostBuilder").target == CPUAccelerator().target()
        assert accelerator.op_builders()["HostBuilder"] == "cpu"


def test_one_added_to_the_accelerator_goes_before_one_added_to_the_host(add):
    add("cpu.GoodBuilder", "added_ops:HostBuilder")
    add("null.GoodBuilder", "added_ops:GoodBuilder")
    accelerator = NullAccelerator()
    assert accelerator.create_op_builder("GoodBuilder").name == "good"
    assert accelerator.op_builder_problems() == {}


def test_the_entry_points_are_read_for_a_name_that_opforge_lacks_and_once(monkeypatch):
    reads = []
    monkeypatch.setattr(external_builders, "entry_points", lambda group: reads.append(group) or [])
    accelerator = CPUAccelerator()
    assert accelerator.create_op_builder("CPUAdamBuilder") is not None
    assert reads == []
    assert accelerator.create_op_builder("NoSuchBuilder") is accelerator.create_op_builder("NorThisBuilder") is None
    assert reads == ["opforge.op_builders"]


@pytest.mark.parametrize("to", ["cpu", "null"])
def test_a_name_of_ours_is_refused_with_both_named(add, to, caplog):
    add(f"{to}.CPUAdamBuilder", "added_ops:GoodBuilder")
    accelerator = NullAccelerator()
    assert type(accelerator.create_op_builder("CPUAdamBuilder")).__module__ == "opforge.builders.cpu.adam"
    why = "the name 'CPUAdamBuilder' is taken by opforge.builders.cpu, so quick 2.0 must choose another"
    assert accelerator.op_builder_problems() == {f"{to}.CPUAdamBuilder of quick 2.0": why}
    assert f"the op builder {to}.CPUAdamBuilder of quick 2.0 is left out: {why}" in caplog.text
    with pytest.raises(OpNotFoundError) as refused:
        accelerator.load_op("NoSuchBuilder")
    assert f"\nLeft out:\n  - {to}.CPUAdamBuilder of quick 2.0: {why}" in str(refused.value)


def test_of_two_packages_with_one_name_the_second_is_refused(add):
    add("cpu.HostBuilder", "added_ops:HostBuilder")
    add("cpu.HostBuilder", "added_ops:GoodBuilder", "slow 1.0")
    accelerator = CPUAccelerator()
    assert accelerator.create_op_builder("HostBuilder").name == "host"
    assert accelerator.op_builder_problems() == {
        "cpu.HostBuilder of slow 1.0": "the name 'HostBuilder' is taken by quick 2.0, so slow 1.0 must choose another"
    }


@pytest.mark.parametrize("name", ["HostBuilder", "cpu.", "cpu.Host-Builder", "cpu.ops.HostBuilder"])
def test_a_name_of_the_wrong_form_is_told_what_is_expected(add, name):
    add(name, "added_ops:HostBuilder")
    assert CPUAccelerator().op_builder_problems() == {
        f"{name} of quick 2.0": "expected a name such as 'cpu.MyOpBuilder': the accelerator's, then the class's"
    }


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("added_broken:HostBuilder", "cannot be had: OSError: libquick.so is missing. Mend that package, or uninstall"),
        ("added_leaving:HostBuilder", "cannot be had: SystemExit: no licence. Mend"),
        ("no_such_package:HostBuilder", "cannot be had: ModuleNotFoundError: No module named 'no_such_package'"),
        ("added_ops:NoSuch", "cannot be had: AttributeError: module 'added_ops' has no attribute 'NoSuch'"),
        ("added_ops", "cannot be had: AttributeError"),
        ("added_ops:number", "is 3, and no builder. Name a subclass of opforge.OpBuilder there"),
        ("json:JSONDecoder", "is <class 'json.decoder.JSONDecoder'>, and no builder"),
    ],
)
def test_a_broken_entry_is_one_error_and_hides_no_other(add, value, problem):
    add("cpu.BrokenBuilder", value)
    add("cpu.HostBuilder", "added_ops:HostBuilder")
    accelerator = CPUAccelerator()
    with pytest.raises(BuilderError) as refused:
        accelerator.create_op_builder("BrokenBuilder")
    assert str(refused.value).startswith("the op builder cpu.BrokenBuilder of quick 2.0: " + value)
    assert problem in str(refused.value)
    assert accelerator.create_op_builder("HostBuilder").name == "host"
    with pytest.raises(OpNotFoundError) as missing:
        accelerator.load_op("NoSuchBuilder")
    assert "\n  - HostBuilder: " in str(missing.value)
    assert "\n  - BrokenBuilder: broken: BuilderError: the op builder cpu.BrokenBuilder" in str(missing.value)


def test_the_commands_list_them_and_report_says_what_is_wrong(add, monkeypatch):
    add("cpu.HostBuilder", "added_ops:HostBuilder")
    add("cpu.BrokenBuilder", "added_broken:HostBuilder")
    add("cpu.CPUAdamBuilder", "added_ops:GoodBuilder")
    monkeypatch.setenv("OPFORGE_ACCELERATOR", "cpu")
    monkeypatch.setattr(select, "_active", None)
    monkeypatch.setattr(machine, "compilers", list)
    listed = json.loads(CliRunner().invoke(command.command, ["--list", "--json", "--target", "cpu"]).stdout)
    assert {"name": "HostBuilder", "accelerator": "cpu"} in listed
    assert [one["name"] for one in listed].count("CPUAdamBuilder") == 1
    ran = CliRunner().invoke(group, ["report", "--json"])
    told = json.loads(ran.stdout)
    assert ran.exit_code == 1
    (left_out,) = told["ops_left_out"]
    assert left_out.startswith("the op builder cpu.CPUAdamBuilder of quick 2.0 is left out: the name 'CPUAdamBuilder'")
    (broken,) = [one for one in told["ops"] if one["name"] == "BrokenBuilder"]
    assert broken["state"] == "unusable" and "libquick.so is missing" in broken["reasons"][0]
    shown = CliRunner().invoke(group, ["report"]).stdout
    assert "problem: the op builder cpu.CPUAdamBuilder of quick 2.0 is left out" in shown


def test_an_op_for_the_host_asks_what_the_host_can_do(add, monkeypatch):
    asked = []
    kind = type(
        "Picky",
        (OpBuilder,),
        {"name": "picky", "sources": ["x.cpp"], "gate": lambda self, can: asked.append(can.device) or ()},
    )
    with use_accelerator(NullAccelerator()) as accelerator:
        kind(target_for(kind, accelerator.target())).is_compatible()
    assert asked == ["cpu"]
