"""What DeepSpeed gets from opforge, as far as no DeepSpeed is needed to see it."""

from __future__ import annotations

import importlib.metadata
import types

import pytest

from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.entry_points import EntryPoint
from opforge.accelerator.interface import external_builders
from opforge.accelerator.target import Target
from opforge.builders.base import OpBuilder
from opforge.compat import deepspeed
from opforge.compat.deepspeed.builders import DROP_IN, JointOp, served
from opforge.errors import DeepSpeedError


def recording(calls, owner, *names):
    """An op whose functions note who was called with what."""
    made = {name: lambda *given, name=name: calls.append((owner, name, given)) for name in names}
    return types.SimpleNamespace(**made, path=f"/{owner}")


def test_opforges_functions_are_called_and_deepspeeds_op_is_not_loaded():
    calls = []
    op = JointOp(recording(calls, "ours", "create_adam", "adam_update"), lambda: pytest.fail("it was loaded"))
    op.create_adam(0, 1e-3)
    op.adam_update(0, 1)
    assert calls == [("ours", "create_adam", (0, 1e-3)), ("ours", "adam_update", (0, 1))]
    assert op.path == "/ours"


def test_a_function_that_opforge_lacks_is_deepspeeds_and_knows_the_optimizers_made_before_and_after():
    calls, loads = [], []
    theirs = recording(calls, "theirs", "create_adam", "zenflow_adam_create")
    op = JointOp(recording(calls, "ours", "create_adam"), lambda: loads.append(1) or theirs)
    op.create_adam(7, 1e-3)
    op.zenflow_adam_create(7)
    op.create_adam(8, 1e-2)
    assert [call for call in calls if call[0] == "theirs"] == [
        ("theirs", "create_adam", (7, 1e-3)),
        ("theirs", "zenflow_adam_create", (7,)),
        ("theirs", "create_adam", (8, 1e-2)),
    ]
    assert [call[2][0] for call in calls if call[0] == "ours"] == [7, 8]
    assert loads == [1]


def test_a_function_that_neither_has_is_an_attribute_error():
    op = JointOp(recording([], "ours"), lambda: recording([], "theirs"))
    with pytest.raises(AttributeError, match="no_such"):
        op.no_such


def test_the_drop_in_builders_are_offered_by_the_host():
    from opforge.builders.cpu import BUILDERS

    assert set(DROP_IN) <= set(BUILDERS)


def test_without_deepspeed_the_error_says_what_to_install(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(DeepSpeedError) as caught:
        deepspeed.install()
    assert str(caught.value) == (
        "DeepSpeed cannot be run on opforge: it is not installed. opforge was tested with DeepSpeed==0.19.8."
        " Install that after torch, with: pip install --no-build-isolation 'deepspeed==0.19.8'"
    )
    assert isinstance(caught.value, ImportError)


def accelerator_offering(monkeypatch, **places):
    """The CPU accelerator with builders that another package adds: class name = what its entry point names."""
    points = [EntryPoint(external_builders.GROUP, f"cpu.{name}", value, "quick 2.0") for name, value in places.items()]
    monkeypatch.setattr(external_builders, "entry_points", lambda group: points)
    return CPUAccelerator()


def theirs(**builders):
    """DeepSpeed's accelerator, with these builders of its own."""
    return types.SimpleNamespace(get_op_builder=builders.get)


def test_a_broken_builder_of_another_package_is_left_out_and_the_others_are_served(monkeypatch, caplog):
    ours = accelerator_offering(monkeypatch, QuickBuilder="no_such_module:QuickBuilder")
    found = served(ours, theirs(), ["QuickBuilder", "FusedAdamBuilder", "UnknownBuilder"])
    assert list(found) == ["FusedAdamBuilder"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("QuickBuilder stays DeepSpeed's own: ") and "no_such_module" in message


class GPU(CPUAccelerator):
    """Under another device's name, with the target of one; whoever asks for it opens the device."""

    def __init__(self, name, target=None):
        self.name, self.said, self.asked = name, target, 0
        super().__init__()

    def target(self):
        self.asked += 1
        return self.said


def test_a_served_builder_is_for_the_accelerators_target_which_is_asked_for_late():
    gpu = GPU("cuda", Target("hip", ("gfx942",)))
    found = served(gpu, theirs(), ["FusedAdamBuilder", "CPUAdamBuilder"])
    fused, host, named = found["FusedAdamBuilder"](), found["CPUAdamBuilder"](), found["FusedAdamBuilder"]("cuda:sm_90")
    assert gpu.asked == 0
    assert [str(one.target) for one in (fused, named)] == ["hip:gfx942", "cuda:sm_90"]
    assert host.target.device == "cpu"
    assert gpu.asked == 1


def test_a_device_without_an_op_of_its_own_is_not_given_the_hosts_for_its_tensors():
    names = ["FusedAdamBuilder", "FusedLionBuilder", "QuantizerBuilder", "CPUAdamBuilder"]
    assert list(served(GPU("xpu"), theirs(), names)) == ["CPUAdamBuilder"]


def test_where_deepspeed_has_no_such_op_the_loaded_one_is_opforges_alone(monkeypatch):
    op = types.SimpleNamespace()
    monkeypatch.setattr(OpBuilder, "load", lambda self, verbose=False: op)
    ours = CPUAccelerator()
    assert served(ours, theirs(), ["CPULionBuilder"])["CPULionBuilder"]().load() is op
    joint = served(ours, theirs(CPULionBuilder=object), ["CPULionBuilder"])["CPULionBuilder"]().load()
    assert isinstance(joint, JointOp)
