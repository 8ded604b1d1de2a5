"""Accelerators that other packages add, and why one is rejected."""

from __future__ import annotations

import pytest
from support.devices.fake_packages import accelerator_source

from opforge.accelerator import candidates, get_accelerator, registry, select
from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.entry_points import EntryPoint
from opforge.errors import AcceleratorUnavailableError, UnknownAcceleratorError
from opforge.report import machine


def reason(name: str) -> str:
    """Returns the reason of the one candidate of that name."""
    (candidate,) = [candidate for candidate in candidates() if candidate.name == name]
    return candidate.reason


def test_another_interface_version_is_rejected_with_both_numbers(add_accelerator):
    add_accelerator("quick", accelerator_source(version=7))
    assert get_accelerator().name == "cpu"
    assert reason("quick") == "other_quick_0:Quick of quick-pkg 2.0 has interface_version 7: this opforge needs 1"


def test_an_accelerator_without_an_interface_version_is_rejected(add_accelerator):
    add_accelerator("quick", "class Quick: pass")
    assert reason("quick") == "other_quick_0:Quick of quick-pkg 2.0 states no interface_version: this opforge needs 1"


@pytest.mark.parametrize(
    ("body", "version"), [("name = 'quick'", None), ("name, interface_version = 'quick', 1", 1)], ids=["none", "own"]
)
def test_a_version_that_is_inherited_from_opforge_is_not_stated(add_accelerator, body, version):
    source = f"from opforge.accelerator import CPUAccelerator\nclass Base(CPUAccelerator): {body}"
    add_accelerator("quick", source + "\nclass Quick(Base): pass")
    text = "other_quick_0:Quick of quick-pkg 2.0 states no interface_version: this opforge needs 1"
    assert reason("quick") == ("available" if version else text)


def test_a_vendor_that_states_no_reason_is_named(add_accelerator):
    add_accelerator("quick", accelerator_source(available="False", extra="    unavailable_reason = lambda self: ''"))
    assert reason("quick") == (
        "is_available() of other_quick_0:Quick of quick-pkg 2.0 returns False and unavailable_reason() nothing"
    )


def test_a_class_that_is_not_an_accelerator_is_rejected(add_accelerator):
    add_accelerator("quick", "class Quick:\n    interface_version = 1")
    assert reason("quick") == (
        "other_quick_0:Quick of quick-pkg 2.0 is not a subclass of opforge.accelerator.Accelerator"
    )


def test_a_package_that_cannot_be_imported_is_an_error_only_if_it_is_named(add_accelerator, monkeypatch):
    add_accelerator("quick", "raise OSError('libquick.so is missing')")
    assert get_accelerator().name == "cpu"
    assert reason("quick") == "other_quick_0:Quick of quick-pkg 2.0 failed: OSError: libquick.so is missing"
    select.reset()
    monkeypatch.setenv("OPFORGE_ACCELERATOR", "quick")
    with pytest.raises(AcceleratorUnavailableError, match=r"libquick\.so is missing") as raised:
        get_accelerator()
    assert isinstance(raised.value.__cause__, OSError)


def test_a_package_that_exits_when_imported_does_not_end_the_process(add_accelerator):
    add_accelerator("quick", "import sys; sys.exit('no licence')")
    assert get_accelerator().name == "cpu"
    assert reason("quick") == "other_quick_0:Quick of quick-pkg 2.0 failed: SystemExit: no licence"


def test_a_constructor_or_a_probe_that_raises_is_the_reason(add_accelerator):
    add_accelerator("quick", accelerator_source(extra="    def __init__(self): raise OSError('no bus')"))
    assert reason("quick") == "other_quick_0:Quick of quick-pkg 2.0 failed: OSError: no bus"
    add_accelerator("brisk", accelerator_source("brisk", available="1 // 0"))
    assert reason("brisk").startswith("other_brisk_1:Quick of brisk-pkg 2.0 failed: ZeroDivisionError")
    add_accelerator("leaving", accelerator_source("leaving", available="__import__('sys').exit(3)"))
    assert reason("leaving") == "other_leaving_2:Quick of leaving-pkg 2.0 failed: SystemExit: 3"
    assert get_accelerator().name == "cpu"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "other_quick_0:Quick of quick-pkg 2.0 failed: AttributeError: module 'other_quick_0' has no"),
        (
            accelerator_source("brisk"),
            "other_quick_0:Quick of quick-pkg 2.0 has the name 'brisk': its entry point needs the same",
        ),
        ("Quick = 3", "other_quick_0:Quick of quick-pkg 2.0 states no interface_version"),
    ],
)
def test_an_entry_point_whose_value_is_wrong_is_rejected_even_for_a_target(add_accelerator, source, problem):
    add_accelerator("quick", source)
    assert reason("quick").startswith(problem)
    with pytest.raises(AcceleratorUnavailableError, match="cannot be used here"):
        registry.make_accelerator("quick", "the target")


def test_an_entry_point_that_names_no_class_is_rejected(no_devices, monkeypatch):
    points = [EntryPoint(registry.GROUP, "quick", "quick_device", "quick-pkg 2.0")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert reason("quick") == "'quick_device' of quick-pkg 2.0 names no class: it must be 'module:Class'"


def test_another_package_cannot_use_a_built_in_name(add_accelerator):
    add_accelerator("cpu", accelerator_source())
    assert isinstance(get_accelerator(), CPUAccelerator)
    assert candidates()[0].reason == "the name 'cpu' is opforge's own: cpu-pkg 2.0 must choose another"


def test_an_accelerator_is_made_for_a_target_even_without_its_device(add_accelerator):
    add_accelerator("quick", accelerator_source(available="False"))
    assert registry.make_accelerator("quick", "the target").name == "quick"
    with pytest.raises(UnknownAcceleratorError, match="'brisk', requested by the target, is not a known accelerator"):
        registry.make_accelerator("brisk", "the target")


def test_a_targets_device_is_served_by_the_accelerator_of_its_name_and_hip_by_cudas(no_devices):
    assert (registry.accelerator_name("xpu"), registry.accelerator_name("hip")) == ("xpu", "cuda")
    assert registry.accelerator_named("hip").name == "cuda"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (accelerator_source(), ""),
        (accelerator_source(available="False"), ""),
        (accelerator_source(available="1 / 0"), "failed: ZeroDivisionError: division by zero"),
        ("import no_such_driver", "failed: ModuleNotFoundError: No module named 'no_such_driver'"),
        ("Quick = 3", "states no interface_version: this opforge needs 1"),
    ],
)
def test_an_accelerator_whose_package_is_broken_needs_attention_and_one_without_its_device_does_not(
    add_accelerator, source, problem
):
    module = add_accelerator("quick", source)
    advice = "Fix that package, or uninstall it."
    expected = [f"the accelerator quick is ignored: {module}:Quick of quick-pkg 2.0 {problem}. {advice}"]
    record = machine.accelerators()
    assert record["ignored"] == (expected if problem else []) and record["problems"] == []
