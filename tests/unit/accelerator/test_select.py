"""Which accelerator is chosen, and what is said of those that are not."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from opforge.accelerator import candidates, get_accelerator, select, set_accelerator, use_accelerator
from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.devices.null import NullAccelerator
from opforge.accelerator.entry_points import EntryPoint
from opforge.accelerator.select import make_accelerator
from opforge.errors import AcceleratorInUseError, AcceleratorUnavailableError, SettingError, UnknownAcceleratorError

QUICK = """
from opforge.accelerator.devices.null import NullAccelerator
class Quick(NullAccelerator):
    name = "quick"
    interface_version = {version}
    def is_available(self):
        return {available}
    def unavailable_reason(self):
        return "its driver is not loaded"
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A process that has chosen nothing, on a machine without devices where no other package adds accelerators."""
    for variable in ("OPFORGE_ACCELERATOR", "DS_ACCELERATOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(select, "_active", None)
    monkeypatch.setattr(select, "entry_points", lambda group: [])
    monkeypatch.setattr(select, "DRIVER_FILES", dict.fromkeys(select.DRIVER_FILES, ()))


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Adds an accelerator as another package would: add("quick", source text)."""
    monkeypatch.syspath_prepend(str(tmp_path))
    points = []
    monkeypatch.setattr(select, "entry_points", lambda group: points)

    def adds(name: str, text: str, attribute: str = "Quick") -> None:
        module = f"other_{name}_{len(points)}"
        (tmp_path / f"{module}.py").write_text(text)
        points.append(EntryPoint(select.GROUP, name, f"{module}:{attribute}", f"{name}-pkg 2.0"))

    yield adds
    for module in [module for module in sys.modules if module.startswith("other_")]:
        del sys.modules[module]


def reason(name: str) -> str:
    (found,) = [candidate for candidate in candidates() if candidate.name == name]
    return found.reason


def test_the_cpu_is_chosen_where_there_is_nothing_else_and_only_once():
    chosen = get_accelerator()
    assert isinstance(chosen, CPUAccelerator)
    assert get_accelerator() is chosen


def test_all_threads_get_the_same_accelerator():
    found = []
    threads = [threading.Thread(target=lambda: found.append(get_accelerator())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize("variable", ["OPFORGE_ACCELERATOR", "DS_ACCELERATOR"])
@pytest.mark.parametrize("name", ["null", "NULL"])
def test_the_environment_chooses(monkeypatch, variable, name):
    monkeypatch.setenv(variable, name)
    assert isinstance(get_accelerator(), NullAccelerator)


def test_opforges_variable_goes_before_deepspeeds(monkeypatch):
    monkeypatch.setenv("OPFORGE_ACCELERATOR", "cpu")
    monkeypatch.setenv("DS_ACCELERATOR", "null")
    assert get_accelerator().name == "cpu"


def test_an_unknown_name_is_refused_with_the_names_that_are_near(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "nul")
    with pytest.raises(UnknownAcceleratorError) as refused:
        get_accelerator()
    assert str(refused.value) == (
        "'nul', requested by DS_ACCELERATOR, is not a known accelerator. Did you mean 'null' or 'npu'?"
        " Known: cpu, cuda, hpu, mlu, mps, npu, null, sdaa, supa, xpu."
        " Install the package that provides it, or choose one of these."
    )


def test_a_device_of_torchs_without_a_class_is_refused_as_such(monkeypatch):
    import torch

    monkeypatch.setattr(torch.mtia, "is_available", lambda: True)
    monkeypatch.setattr(torch.mtia, "device_count", lambda: 2)
    monkeypatch.setenv("OPFORGE_ACCELERATOR", "mtia")
    with pytest.raises(AcceleratorUnavailableError) as refused:
        get_accelerator()
    assert str(refused.value) == (
        "The accelerator 'mtia', requested by OPFORGE_ACCELERATOR, cannot be used here: torch sees 2 mtia devices, but"
        " no accelerator class for 'mtia' is installed. Fix that, or unset it to let opforge choose."
    )
    assert "torch sees 2 mtia devices" in reason("mtia")


def test_another_packages_accelerator_goes_before_the_cpu(add):
    add("quick", QUICK.format(version=1, available=True))
    assert get_accelerator().name == "quick"
    assert candidates()[0].name == "quick"
    assert [candidate.name for candidate in candidates()][-2:] == ["cpu", "null"]


def test_an_unavailable_accelerator_is_passed_over_with_its_reason(add, monkeypatch):
    add("quick", QUICK.format(version=1, available=False))
    assert get_accelerator().name == "cpu"
    assert reason("quick") == "its driver is not loaded"
    with pytest.raises(
        AcceleratorUnavailableError, match=r"'quick', requested by the program.*its driver is not loaded"
    ):
        set_accelerator("quick")


def test_another_interface_version_is_rejected_with_both_numbers(add):
    add("quick", QUICK.format(version=7, available=True))
    assert get_accelerator().name == "cpu"
    assert reason("quick") == "quick-pkg 2.0 speaks version 7 of the accelerator interface, and this opforge version 1"


def test_an_accelerator_that_states_no_version_is_rejected(add):
    add("quick", "class Quick: pass")
    assert reason("quick") == "quick-pkg 2.0 speaks no interface version, and this opforge version 1"


def test_what_is_no_accelerator_is_rejected(add):
    add("quick", "class Quick:\n    interface_version = 1")
    assert "other_quick_0:Quick of quick-pkg 2.0 is no opforge.accelerator.Accelerator" in reason("quick")


def test_a_package_that_fails_to_import_is_fatal_only_where_it_was_chosen(add, monkeypatch):
    add("quick", "raise OSError('libquick.so is missing')")
    assert get_accelerator().name == "cpu"
    assert reason("quick") == "other_quick_0:Quick of quick-pkg 2.0 failed: OSError: libquick.so is missing"
    monkeypatch.setattr(select, "_active", None)
    monkeypatch.setenv("OPFORGE_ACCELERATOR", "quick")
    with pytest.raises(AcceleratorUnavailableError, match=r"libquick\.so is missing") as refused:
        get_accelerator()
    assert isinstance(refused.value.__cause__, OSError)


def test_a_package_that_ends_the_process_when_imported_ends_none(add):
    add("quick", "import sys; sys.exit('no licence')")
    assert get_accelerator().name == "cpu"
    assert reason("quick") == "other_quick_0:Quick of quick-pkg 2.0 failed: SystemExit: no licence"


def test_a_constructor_or_a_probe_that_fails_is_told(add):
    add("quick", QUICK.format(version=1, available=True) + "    def __init__(self): raise OSError('no bus')")
    assert reason("quick") == "other_quick_0:Quick of quick-pkg 2.0 failed: OSError: no bus"
    add("brisk", QUICK.format(version=1, available="1 // 0").replace("quick", "brisk"))
    assert reason("brisk").startswith("other_brisk_1:Quick of brisk-pkg 2.0 failed: ZeroDivisionError")
    assert get_accelerator().name == "cpu"


@pytest.mark.parametrize(
    ("text", "attribute", "told"),
    [
        ("", "Quick", "other_quick_0:Quick of quick-pkg 2.0 failed: AttributeError: module 'other_quick_0' has no"),
        (
            QUICK.format(version=1, available=True).replace('"quick"', '"brisk"'),
            "Quick",
            "other_quick_0:Quick of quick-pkg 2.0 is named 'brisk', and its entry point 'quick'",
        ),
        ("Quick = 3", "Quick", "quick-pkg 2.0 speaks no interface version"),
    ],
)
def test_an_entry_point_that_gives_the_wrong_thing_is_told(add, text, attribute, told):
    add("quick", text, attribute)
    assert reason("quick").startswith(told)
    with pytest.raises(AcceleratorUnavailableError, match="cannot be used here"):
        make_accelerator("quick", "the target")


def test_an_entry_point_that_names_no_class_is_told(monkeypatch):
    points = [EntryPoint(select.GROUP, "quick", "quick_device", "quick-pkg 2.0")]
    monkeypatch.setattr(select, "entry_points", lambda group: points)
    assert reason("quick") == "'quick_device' of quick-pkg 2.0 names no class: it must be 'module:Class'"


def test_an_accelerator_is_made_for_a_target_whether_or_not_its_device_is_here(add):
    add("quick", QUICK.format(version=1, available=False))
    assert make_accelerator("quick", "the target").name == "quick"
    with pytest.raises(UnknownAcceleratorError, match="'brisk', requested by the target, is not a known accelerator"):
        make_accelerator("brisk", "the target")


def test_another_package_cannot_take_the_cpus_name(add):
    add("cpu", QUICK.format(version=1, available=True))
    assert isinstance(get_accelerator(), CPUAccelerator)
    assert candidates()[0].reason == "the name 'cpu' is opforge's own: cpu-pkg 2.0 must choose another"


def test_every_candidate_has_a_reason():
    found = candidates()
    assert all(candidate.reason for candidate in found)
    assert {candidate.name: candidate.available for candidate in found}["cpu"]


def test_null_is_never_chosen_unasked(monkeypatch):
    assert reason("null") == "runs nothing: used only when it is named"
    monkeypatch.setattr(select, "BUILT_IN", {"null": select.BUILT_IN["null"]})  # not even where nothing else is
    with pytest.raises(AcceleratorUnavailableError):
        get_accelerator()


def test_set_accelerator_replaces_it_and_takes_only_accelerators():
    mine = NullAccelerator()
    set_accelerator(mine)
    assert get_accelerator() is mine
    set_accelerator("cpu")
    assert get_accelerator().name == "cpu"
    with pytest.raises(
        SettingError, match=r"accelerator=3 cannot be used: expected an opforge.accelerator.Accelerator"
    ):
        set_accelerator(3)


def test_scopes_nest_and_restore_even_after_an_error():
    outer = get_accelerator()
    with pytest.raises(ZeroDivisionError), use_accelerator("null") as null:
        assert get_accelerator() is null
        with use_accelerator(CPUAccelerator()) as inner:
            assert get_accelerator() is inner
        assert get_accelerator() is null
        1 / 0
    assert get_accelerator() is outer


def test_a_replacement_inside_a_scope_ends_with_it():
    outer = get_accelerator()
    with use_accelerator("null"):
        set_accelerator("cpu")
        assert get_accelerator().name == "cpu"
    assert get_accelerator() is outer


def in_thread(work) -> list[BaseException]:
    problems: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return problems


def test_a_scope_refuses_other_threads_and_they_see_its_accelerator():
    with use_accelerator("null") as null:
        seen = []
        assert in_thread(lambda: seen.append(get_accelerator())) == []
        assert seen == [null]
        (scope,) = in_thread(lambda: use_accelerator("cpu").__enter__())
        (replaced,) = in_thread(lambda: set_accelerator("cpu"))
        assert get_accelerator() is null
    assert isinstance(scope, AcceleratorInUseError) and isinstance(replaced, AcceleratorInUseError)
    assert "use_accelerator('cpu') was refused: another thread is inside use_accelerator('null')" in str(scope)
    assert in_thread(lambda: set_accelerator("cpu")) == []


def test_a_fork_drops_the_scope_of_a_thread_that_is_not_in_the_child(monkeypatch):
    outer = get_accelerator()
    with use_accelerator("null"):
        select._after_fork()
        assert get_accelerator().name == "null"
        monkeypatch.setattr(select, "get_ident", lambda: -1)
        select._after_fork()
        assert get_accelerator() is outer
    assert get_accelerator() is outer


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="needs fork")
def test_the_lock_is_new_in_a_child():
    before = select._lock
    with before:
        select._after_fork()
    assert select._lock is not before
    assert select._lock.acquire(blocking=False)
    select._lock.release()
