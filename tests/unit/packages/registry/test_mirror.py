"""Copying packages to another store, and that cleaning a store keeps what releases name."""

from __future__ import annotations

import os

import pytest
from support.remote.withdrawing import take_back, withdraw_release

from opforge.packages.form import version
from opforge.packages.registry import index, install_release, publish, selection
from opforge.remote import gc, mirror
from opforge.remote.signatures import keys
from opforge.remote.stores import open_store


@pytest.fixture
def other(tmp_path):
    (tmp_path / "other").mkdir()
    return open_store(f"file://{tmp_path}/other")


def installed_from(registry, store):
    choice = selection.choose("acme/plain", version.ANY, selection.sources([store.url]))
    return install_release.install_release(registry.root, choice)[0]


def test_a_copy_serves_with_the_signatures_of_the_first(registry, other):
    for number in ("1", "2"):
        registry.publish(number=number, text=f"VALUE = {number}\n")
    registry.publish("acme/other")
    withdraw_release(registry.store, "acme/plain@1", "wrong")
    copied = {entry.topic: entry.statements for entry in mirror.copy(registry.store, other)}
    assert copied == {"acme/plain": 2, "acme/other": 1}
    release = installed_from(registry, other)
    assert (str(release.version), release.signer) == ("2", "ci")
    ours, theirs = (index.read(store, "acme/plain") for store in (registry.store, other))
    assert ours == theirs, "with the same state, so that a lock serves with both"


def test_again_copies_what_is_new(registry, other):
    registry.publish(number="1")
    assert [entry.statements for entry in mirror.copy_named(registry.store, other, "package", ["acme/plain"])] == [1]
    assert [entry[2:] for entry in mirror.copy_named(registry.store, other, "package", ["acme/plain"])] == [(0, 0, ())]
    registry.publish(number="2", text="VALUE = 2\n")
    assert [entry.statements for entry in mirror.copy_named(registry.store, other, "package", ["acme/plain"])] == [1]


def test_a_list_of_withdrawals_is_copied_by_name_too(registry, other):
    """An HTTP server cannot list its lists: those of the keys that signed what is copied are asked for."""
    registry.publish(number="1")
    registry.publish(number="2", text="VALUE = 2\n")
    withdraw_release(registry.store, "acme/plain@2", "wrong")
    list(mirror.copy_named(registry.store, other, "package", ["acme/plain"]))
    assert str(installed_from(registry, other).version) == "1"
    take_back(registry.store, "acme/plain@2")
    list(mirror.copy_named(registry.store, other, "package", ["acme/plain"]))
    assert str(installed_from(registry, other).version) == "2"


def test_a_package_of_which_nothing_could_be_copied_is_not_there(registry, other):
    done = registry.publish(number="1")
    registry.store.delete(f"v1/statements/sha256/{done.digest[:2]}/{done.digest}")
    (entry,) = mirror.copy(registry.store, other)
    assert entry.problems and index.read(other, "acme/plain") is None


@pytest.mark.parametrize("number", ["1", "1.0"])
def test_a_version_with_other_files_is_left_alone_and_reported(registry, other, number):
    registry.publish(number=number)
    folder = registry.packed(text="VALUE = 9\n")
    publish.publish(other, folder, keys.signer())
    (entry,) = mirror.copy(registry.store, other)
    assert (
        entry.statements == 0
        and f"acme/plain {number}: " in entry.problems[0]
        and "has other files of this" in entry.problems[0]
    )


def test_a_version_that_somebody_publishes_while_it_is_copied_keeps_its_files(registry, other, monkeypatch):
    registry.publish()
    publish.publish(other, registry.packed(text="VALUE = 9\n"), keys.signer())
    before = index.read(other, "acme/plain")
    monkeypatch.setattr(mirror, "_labels", lambda *_arguments: {})  # as they were when the copy began
    list(mirror.copy(registry.store, other, is_unsigned=True))  # otherwise a key's list says it first
    assert index.read(other, "acme/plain") == before


def test_a_package_that_is_not_there_is_reported(registry, other):
    (entry,) = mirror.copy_named(registry.store, other, "package", ["acme/gone"])
    assert entry.problems == (f"{registry.store.url} has no package acme/gone",)


def test_cleaning_a_remote_keeps_the_blobs_of_packages(registry):
    registry.publish()
    (blob,) = [name for name in registry.files() if name.startswith("v1/blobs/")]
    registry.store.put_if_absent(f"v1/blobs/sha256/aa/{'a' * 64}", b"nobody's")
    later = os.stat(os.path.join(registry.path, blob)).st_mtime + 10 * 86400
    assert [unused.name for unused in gc.unused(registry.store, later)] == [f"v1/blobs/sha256/aa/{'a' * 64}"]
