"""A full disk while a package is installed, packed or published: one error that says so, and nothing is left."""

from __future__ import annotations

import os

import pytest
from support.kernels.projects import python_project
from support.kernels.registries import QUICK, Registry

from opforge.errors import KernelInstallError, OpforgeError
from opforge.packages.form import version
from opforge.packages.installed import releases, remove
from opforge.packages.installed.layout import Root
from opforge.packages.pack.run import pack
from opforge.packages.registry import install_release, publish, selection, verify_installed
from opforge.packages.sources import reading
from opforge.remote.signatures import keys
from opforge.remote.stores import open_store

PAGES = [*range(0, 60, 4), 80]
TEXT = "VALUE = 1\n" + "# filler\n" * 2000


@pytest.fixture
def registry(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Registry(tmp_path)


def fill(disk, pages):
    """Leaves so many free pages on a disk."""
    status = os.statvfs(disk)
    with open(disk / "filler", "wb") as file:
        file.write(bytes(max(0, status.f_bavail - pages) * status.f_bsize))


def files(folder):
    """Returns the files in a folder, but for locks."""
    walked = os.walk(folder)
    return [
        os.path.join(parent, name) for parent, _folders, names in walked for name in names if "/locks" not in parent
    ]


def test_an_installation_on_a_full_disk_leaves_nothing(registry, mount_tmpfs):
    registry.publish(text=TEXT)
    choice = selection.choose("acme/plain", version.ANY, registry.sources())
    outcomes = set()
    disk = mount_tmpfs("size=512k")
    for pages in PAGES:
        root = Root(str(disk / f"root{pages}"), "folder")
        fill(disk, pages)
        try:
            release, _is_new = install_release.install_release(root, choice)
            outcomes.add("installed")
            assert verify_installed.problems(release, deep=True) == []
        except KernelInstallError as error:
            outcomes.add("full")
            assert f"the disk of {root.path} is full. Free some space" in str(error)
            assert files(root.path) == [] and releases.names(root) == []
        os.unlink(disk / "filler")
        release, _is_new = install_release.install_release(root, choice)
        assert verify_installed.problems(release, deep=True) == []
        remove.remove(root, "acme/plain", version.ANY)
        assert files(root.path) == []
    assert outcomes == {"installed", "full"}


def test_packing_and_publishing_on_a_full_disk_leave_what_was_there(registry, mount_tmpfs):
    disk, outcomes = mount_tmpfs("size=512k"), set()
    folder = python_project(disk / "project", "acme/plain", "1", TEXT)
    pack(reading.read(folder), folder, QUICK)
    before = sorted(files(folder))
    os.mkdir(disk / "registry")
    store = open_store(f"file://{disk}/registry")
    for pages in PAGES:
        fill(disk, pages)
        try:
            pack(reading.read(folder), folder, QUICK)
            outcomes.add("packed")
        except OSError as error:
            outcomes.add("full")
            assert "No space left on device" in str(error)
        assert sorted(files(folder)) == before
        try:
            publish.publish(store, folder, keys.signer("ci"))
            outcomes.add("published")
        except (OpforgeError, OSError) as error:
            assert "No space left on device" in str(error) or "the disk is full. Free some space" in str(error)
            assert not os.path.exists(disk / "registry/v1/topics/package/acme/plain.json")
        os.unlink(disk / "filler")
    assert publish.publish(store, folder, keys.signer("ci")).is_new is False
    assert outcomes == {"packed", "full", "published"}
