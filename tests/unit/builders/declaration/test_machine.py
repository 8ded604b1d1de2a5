"""The machine as it is read: torch and Python without importing torch, the C libraries, what names of look-ups hold."""

from __future__ import annotations

import sys
import sysconfig

import pytest
from support import child_processes

from opforge.builders.declaration import machine
from opforge.fast_path import machine as warm_machine


def test_the_folder_of_pythons_headers_is_the_one_that_sysconfig_names(tmp_path, monkeypatch):
    machine.python_include.cache_clear()
    try:
        assert machine.python_include() == sysconfig.get_path("include")
        machine.python_include.cache_clear()
        monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
        monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / f"its-{name}"))
        assert machine.python_include() == str(tmp_path / "its-include"), "no header is in the usual folder"
    finally:
        machine.python_include.cache_clear()


LIBSTDCXX = """
import re, torch
from opforge.builders.declaration import machine
from opforge.fast_path import machine as warm_machine
maps = open("/proc/self/maps").read()
mapped = re.search(r"libstdc\\+\\+\\.so\\.6\\.0\\.(\\d+)", maps)
here = machine.this_machine()
assert not mapped or here.libstdcxx == f"3.4.{mapped[1]}", (here, mapped)
assert here.torch == torch.__version__
print(here.libstdcxx)
"""


def test_the_libstdcxx_is_the_one_that_this_process_uses():
    pytest.importorskip("torch", reason="pip install torch")
    assert child_processes.run_with_torch(LIBSTDCXX).strip().startswith("3.4.")


def test_a_machine_without_torch_and_with_an_unreadable_one(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "torch_folder", lambda: None)
    assert machine.this_machine().torch is None
    monkeypatch.setattr(machine, "torch_folder", lambda: str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert machine.this_machine().torch == ""


def test_devices_are_read_for_one_kind_alone(monkeypatch):
    monkeypatch.setattr(machine, "present", lambda device: (f"{device}1",))
    assert machine.this_machine().devices == ()
    here = machine.this_machine("hip")
    assert (here.device, here.devices, here.driver) == ("hip", ("hip1",), None)


@pytest.mark.parametrize("name", warm_machine.LOADER_ENV)
def test_the_name_of_a_look_up_holds_what_changes_the_libraries_that_are_met(monkeypatch, name):
    before = warm_machine.name_parts()
    monkeypatch.setenv(name, "/elsewhere")
    assert warm_machine.name_parts() != before
