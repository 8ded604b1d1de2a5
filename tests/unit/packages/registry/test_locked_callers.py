"""A package that brings a lock file gets what is locked there, or an error with the command that gets it."""

from __future__ import annotations

import importlib
import sys

import pytest
from support.kernels.registries import QUICK
from support.text_files import write

import opforge
from opforge.errors import KernelIncompatibleError, KernelNotFoundError
from opforge.packages.installed import layout, releases
from opforge.packages.pack.run import pack
from opforge.packages.project import locking
from opforge.packages.registry import publish
from opforge.packages.sources import reading
from opforge.remote.signatures import keys
from opforge.remote.stores import open_store

CALLER = "import opforge\ndef get(**more):\n    return opforge.get_kernel('acme/plain', **more)\n"


@pytest.fixture
def locked(registry, monkeypatch):
    """Makes a package with a lock of acme/plain 1 in a folder; returns its function that calls get_kernel."""
    registry.publish()
    site, imported = registry.scratch / "site", []
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("OPFORGE_REMOTES", registry.url)

    def make(name, at):
        write(site / name.replace(".", "/"), "__init__.py", CALLER)
        write(site / at, "kernels.toml", '"acme/plain" = 1\n')
        lock, _changes = locking.make(str(site / at), registry.sources())
        locking.lock_file.write(str(site / at), lock)
        imported.append(name)
        return importlib.import_module(name).get

    make.site = site
    yield make
    for name in imported:
        sys.modules.pop(name)
        sys.modules.pop(name.partition(".")[0], None)


@pytest.fixture
def caller(locked):
    """The function of a package that calls get_kernel, and was locked with acme/plain 1."""
    return locked("caller_with_a_lock", "caller_with_a_lock")


def test_what_is_not_installed_says_the_command_for_what_is_locked(caller):
    with pytest.raises(KernelNotFoundError, match=r"Install it with: opforge install 'acme/plain@==1\.0'"):
        caller()


def test_another_version_is_not_taken_and_the_command_is_said(registry, caller):
    registry.publish(number="2", text="VALUE = 2\n")
    registry.install(numbers=2)
    with pytest.raises(KernelIncompatibleError, match=r"says 1\n.*opforge install 'acme/plain@==1\.0'"):
        caller()


def test_two_callers_have_a_version_each_in_one_process(registry, caller):
    registry.install()
    registry.publish(number="2", text="VALUE = 2\n")
    registry.install(numbers=2)
    for _again in range(2):  # the second time each has its answer from before
        assert caller().VALUE == 1 and opforge.get_kernel("acme/plain").VALUE == 2


@pytest.mark.parametrize("at", ["spaced_caller/signs", "signs-1.0.dist-info"])
def test_a_part_of_a_namespace_package_has_its_own_lock(locked, at):
    write(locked.site / "signs-1.0.dist-info", "RECORD", "spaced_caller/signs/__init__.py,,\n")
    for other in ("after", "other"):  # distributions with other parts, whose locks would be errors
        write(locked.site / f"{other}-1.0.dist-info", "RECORD", f"spaced_caller/{other}/__init__.py,,\n")
        write(locked.site / f"{other}-1.0.dist-info", "opforge.lock", "damaged")
    with pytest.raises(KernelNotFoundError, match=r"opforge install 'acme/plain@==1\.0'"):
        locked("spaced_caller.signs", at)()


def test_on_demand_the_locked_version_is_installed(registry, caller):
    registry.publish(number="2", text="VALUE = 2\n")
    assert caller(install=True).VALUE == 1


def test_on_demand_other_files_of_the_locked_version_are_not_installed(registry, caller, monkeypatch):
    """Of another registry, which may sign the name, too."""
    folder = registry.packed(text="VALUE = 'other'\n")
    pack(reading.read(folder), folder, QUICK)
    (registry.scratch / "second").mkdir()
    url = f"file://{registry.scratch}/second"
    publish.publish(open_store(url), folder, keys.signer("ci"))
    monkeypatch.setenv("OPFORGE_REMOTES", url)
    with pytest.raises(KernelIncompatibleError, match="has another digest for 1"):
        caller(install=True)
    assert releases.names(layout.user_root()) == []


@pytest.mark.parametrize("label", [None, "torch-universal"])
def test_on_demand_what_a_package_needs_is_installed_too(registry, monkeypatch, label):
    monkeypatch.setenv("OPFORGE_REMOTES", registry.url)
    registry.publish("acme/base", text="VALUE = 'base'\n")
    text = "import opforge\nVALUE = opforge.get_kernel('acme/base', 1).VALUE\n"
    registry.publish("acme/top", text=text, depends={"acme/base": "1"})
    assert opforge.get_kernel("acme/top", variant=label, install=True).VALUE == "base"
    assert releases.names(layout.user_root()) == ["acme/base", "acme/top"]
