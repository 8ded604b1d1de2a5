"""How often a registry is asked: three times for a package, once with a lock where the project was locked."""

from __future__ import annotations

import os

import pytest
from support.text_files import write

from opforge.errors import KernelLockError
from opforge.foundation import remembered_values
from opforge.packages.project import locking
from opforge.packages.project.install_locked import install_locked
from opforge.packages.project.lock_file import write as write_lock
from opforge.packages.registry import verify_installed


@pytest.fixture
def requests(registry, monkeypatch):
    """The kinds of objects that stores were asked for."""
    kinds, kind = [], type(registry.store)
    for name in ("get", "download"):
        method = getattr(kind, name)

        def counted(self, path, *arguments, method=method):
            kinds.append(path.split("/")[1])
            return method(self, path, *arguments)

        monkeypatch.setattr(kind, name, counted)
    return kinds


@pytest.fixture
def project(registry, requests):
    """A project that was locked here."""
    registry.publish()
    write(registry.scratch, "kernels.toml", '[kernels]\n"acme/plain" = "1"\n')
    lock, _changes = locking.make(str(registry.scratch), registry.sources())
    write_lock(str(registry.scratch), lock)
    requests.clear()
    return str(registry.scratch)


def install(registry, project, *urls):
    ((release, is_new),) = install_locked(registry.root, project, True, False, urls or [registry.url])
    assert is_new and verify_installed.problems(release, deep=True) == []


def kept():
    """Returns the paths of the releases that are kept."""
    (folder,) = remembered_values.kept_folders()
    return [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("release-")]


def test_a_package_takes_four(registry, requests):
    registry.publish()
    requests.clear()
    registry.install()
    assert requests == ["withdrawals", "topics", "statements", "blobs"]


def test_with_a_lock_it_is_the_blob_alone(registry, project, requests):
    install(registry, project)
    assert requests == ["blobs"]


def test_another_machine_fetches_the_release_too(registry, project, requests, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    install(registry, project)
    assert requests == ["statements", "withdrawals", "blobs"]


@pytest.mark.parametrize("content", [b"", b"{", b"3", b'"x"', b'"' + b"a" * 1000 + b'"'])
def test_what_is_kept_and_damaged_is_fetched_again(registry, project, requests, content):
    (path,) = kept()
    with open(path, "wb") as file:
        file.write(content)
    install(registry, project)
    assert requests == ["statements", "blobs"]


def test_a_key_that_is_not_trusted_any_more_is_refused(registry, project):
    registry.trust("other/*")
    with pytest.raises(KernelLockError, match="no key that signed it may sign package:acme/plain"):
        install(registry, project)


def test_another_remote_says_itself_whether_it_has_the_release(registry, project, requests):
    (registry.scratch / "empty").mkdir()
    install(registry, project, f"file://{registry.scratch}/empty", registry.url)
    assert requests == ["statements", "blobs"]
