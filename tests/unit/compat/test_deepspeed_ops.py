"""opforge's builders and ops for DeepSpeed, tested without DeepSpeed."""

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
from opforge.compat.deepspeed.builders import DROP_IN, FallbackOp, replacement_builders
from opforge.errors import DeepSpeedError


def recording_op(calls, owner, *names):
    """Returns an op whose functions add (owner, name, arguments) to the calls."""
    functions = {name: lambda *arguments, name=name: calls.append((owner, name, arguments)) for name in names}
    return types.SimpleNamespace(**functions, path=f"/{owner}")


def test_opforges_functions_are_called_without_loading_deepspeeds_op():
    calls = []
    op = FallbackOp(recording_op(calls, "ours", "create_adam", "adam_update"), lambda: pytest.fail("it was loaded"))
    op.create_adam(0, 1e-3)
    op.adam_update(0, 1)
    assert calls == [("ours", "create_adam", (0, 1e-3)), ("ours", "adam_update", (0, 1))]
    assert op.path == "/ours"


def test_deepspeeds_op_gets_all_optimizers_if_a_function_of_it_is_used():
    calls, loads = [], []
    deepspeeds_op = recording_op(calls, "theirs", "create_adam", "zenflow_adam_create")
    op = FallbackOp(recording_op(calls, "ours", "create_adam"), lambda: loads.append(1) or deepspeeds_op)
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


def test_a_function_that_neither_op_has_is_an_attribute_error():
    op = FallbackOp(recording_op([], "ours"), lambda: recording_op([], "theirs"))
    with pytest.raises(AttributeError, match="no_such"):
        op.no_such


def test_the_host_offers_the_drop_in_builders():
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


def accelerator_offering(monkeypatch, **import_paths):
    """Returns the CPU accelerator with builders of another package: the import paths of its entry points by class."""
    points = [
        EntryPoint(external_builders.GROUP, f"cpu.{name}", path, "quick 2.0") for name, path in import_paths.items()
    ]
    monkeypatch.setattr(external_builders, "entry_points", lambda group: points)
    return CPUAccelerator()


def deepspeeds_accelerator(**builders):
    """Returns a stand-in for DeepSpeed's accelerator that has these builders."""
    return types.SimpleNamespace(get_op_builder=builders.get)


def test_a_broken_builder_of_another_package_is_left_out_and_logged(monkeypatch, caplog):
    ours = accelerator_offering(monkeypatch, QuickBuilder="no_such_module:QuickBuilder")
    builders = replacement_builders(
        ours, deepspeeds_accelerator(), ["QuickBuilder", "FusedAdamBuilder", "UnknownBuilder"]
    )
    assert list(builders) == ["FusedAdamBuilder"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("QuickBuilder is DeepSpeed's, not opforge's: ") and "no_such_module" in message


class FakeGPU(CPUAccelerator):
    """An accelerator with another device's name and target. It counts the calls of target(), which open a device."""

    def __init__(self, name, target=None):
        self.name, self.fake_target, self.target_calls = name, target, 0
        super().__init__()

    def target(self):
        self.target_calls += 1
        return self.fake_target


def test_a_builder_is_for_the_accelerators_target_and_creating_it_opens_no_device():
    gpu = FakeGPU("cuda", Target("hip", ("gfx942",)))
    builders = replacement_builders(gpu, deepspeeds_accelerator(), ["FusedAdamBuilder", "CPUAdamBuilder"])
    fused, host = builders["FusedAdamBuilder"](), builders["CPUAdamBuilder"]()
    requested = builders["FusedAdamBuilder"]("cuda:sm_90")
    assert gpu.target_calls == 0
    assert [str(builder.target) for builder in (fused, requested)] == ["hip:gfx942", "cuda:sm_90"]
    assert host.target.device == "cpu"
    assert gpu.target_calls == 1


def test_the_hosts_op_does_not_replace_one_that_gets_a_devices_tensors():
    names = ["FusedAdamBuilder", "FusedLionBuilder", "QuantizerBuilder", "CPUAdamBuilder"]
    assert list(replacement_builders(FakeGPU("xpu"), deepspeeds_accelerator(), names)) == ["CPUAdamBuilder"]


def test_there_is_no_fallback_if_deepspeed_has_no_such_op(monkeypatch):
    op = types.SimpleNamespace()
    monkeypatch.setattr(OpBuilder, "load", lambda self, verbose=False: op)

    def load(**deepspeeds_builders):
        theirs = deepspeeds_accelerator(**deepspeeds_builders)
        return replacement_builders(CPUAccelerator(), theirs, ["CPULionBuilder"])["CPULionBuilder"]().load()

    assert load() is op
    assert isinstance(load(CPULionBuilder=object), FallbackOp)
