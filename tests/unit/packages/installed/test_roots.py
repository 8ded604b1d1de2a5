"""A folder with installed packages: its modes and owners, what is left of others, and what a removal may take."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat

import pytest
from support.kernels.registries import QUICK
from support.remote.withdrawing import name_release
from support.text_files import write

from opforge.errors import KernelInstallError, KernelNotFoundError
from opforge.packages.form import version
from opforge.packages.form.version import Version
from opforge.packages.installed import add, layout, releases, remove
from opforge.packages.pack.run import pack
from opforge.packages.registry import index, install_release, publish, selection, verify_installed
from opforge.packages.sources import reading
from opforge.remote import statements
from opforge.remote.signatures import keys


def change(path, **fields):
    """Changes fields of a JSON file."""
    with open(path) as file:
        value = json.load(file) | fields
    write(os.path.dirname(path), os.path.basename(path), json.dumps(value))


def left(registry):
    """Returns the files below the root, but for locks."""
    walked = os.walk(registry.root.path)
    return sorted(
        os.path.join(parent, name) for parent, _folders, names in walked for name in names if "locks" not in parent
    )


def with_lie(registry):
    """Publishes a release of two variants; the digest of the second is not that of its files."""
    folder = registry.packed()
    with open(os.path.join(folder, "kernel.toml"), "a") as file:
        file.write('backends = ["cpu", "cuda"]\n')
    shutil.rmtree(os.path.join(folder, "build"))
    pack(reading.read(folder), folder, QUICK)
    publish.publish(registry.store, folder, keys.signer("ci"))
    listed = index.read(registry.store, "acme/plain")
    there = selection.choose("acme/plain", version.ANY, registry.sources(), all_platforms=True).verified.release
    first, second = there.variants
    signed = (
        there._replace(variants=(first, second._replace(tree=second.tree._replace(digest="0" * 64)))).statement().data()
    )
    changed = statements.Signed(signed, (keys.signer("ci")(signed),))
    registry.store.put_if_absent(statements.name_of(changed.digest), changed.file())
    entry = listed.releases[Version(1)]._replace(digest=changed.digest)
    registry.replace(
        "v1/topics/package/acme/plain.json", listed._replace(releases={Version(1): entry}).listing().data()
    )
    name_release(registry.store, "acme/plain@1", changed.digest)


class TestModes:
    def test_the_modes_of_a_folder_that_a_group_shares_stay(self, registry):
        """An administrator lets a group install: its bits must not go with the next installation."""
        registry.publish()
        registry.install()
        shared = [registry.root.path, registry.root.join(), registry.root.join("names"), registry.root.join("trees")]
        shared += [registry.root.join("names", "acme"), registry.root.join("names", "acme", "plain")]
        for folder in shared:
            os.chmod(folder, 0o2775)
        registry.publish(number="2", text="VALUE = 2\n")
        registry.install()
        assert {stat.S_IMODE(os.stat(folder).st_mode) for folder in shared} == {0o2775}

    def test_every_user_can_read_all_that_was_installed(self, registry):
        registry.publish()
        registry.install()
        for parent, folders, names in os.walk(registry.root.join()):
            folders[:] = [name for name in folders if name not in ("locks", "staging")]
            modes = {name: os.stat(os.path.join(parent, name)).st_mode for name in [*folders, *names]}
            assert [name for name in folders if modes[name] & 0o005 != 0o005] == []
            assert [name for name in names if not modes[name] & 0o004] == []

    @pytest.mark.parametrize("mask", [0o002, 0o000, 0o277], ids=oct)
    def test_nobody_else_may_write_what_an_installation_has_made_whatever_the_umask(self, registry, mask):
        """In a container the user may have no entry in the list of users: then its group counts as others."""
        registry.publish()
        root = registry.root._replace(path=str(registry.scratch / "made" / "here"))
        before = os.umask(mask)
        try:
            release, _is_new = install_release.install_release(
                root, selection.choose("acme/plain", version.ANY, registry.sources())
            )
        finally:
            os.umask(before)
        folders = [registry.scratch / "made", *(parent for parent, _folders, _files in os.walk(root.path))]
        assert release.variants and [folder for folder in folders if os.stat(folder).st_mode & 0o022] == []

    def test_a_release_is_readable_from_the_moment_that_it_is_there(self, registry, monkeypatch):
        """One who is killed right after the rename must not leave a release that others cannot read."""
        registry.publish()
        modes = []
        replace = os.replace

        def watched(source, target, **more):
            replace(source, target, **more)
            if "/names/" in str(target):
                modes.append(stat.S_IMODE(os.stat(target).st_mode))

        monkeypatch.setattr(os, "replace", watched)
        registry.install()
        assert modes == [0o644]


class TestLeftByOthers:
    def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(self, registry, monkeypatch):
        """As on NFS after a change of the server, or in a process that has too many files open."""
        registry.publish()
        registry.install()

        def failing(function, folder):
            def call(path="."):
                if os.path.basename(os.fspath(path)) == folder:
                    raise OSError(errno.ESTALE, "Stale file handle", path)
                return function(path)

            return call

        for folder in ("names", "acme", "plain"):
            with monkeypatch.context() as patch:
                for function in (os.listdir, os.scandir):
                    patch.setattr(os, function.__name__, failing(function, folder))
                assert remove.sweep(registry.root) == []
        assert verify_installed.problems(releases.read(registry.root, "acme/plain", Version(1)), deep=True) == []

    def test_what_another_user_left_does_not_stop_an_installation(self, registry, monkeypatch):
        registry.publish()
        registry.install()
        left_behind = registry.root.join("staging", "install.1.00000000.tmp")
        os.makedirs(left_behind)
        os.utime(left_behind, (0, 0))
        chmod = os.chmod

        def refused(path, *arguments, **more):
            if str(path) == left_behind:
                raise PermissionError(1, "Operation not permitted", path)
            chmod(path, *arguments, **more)

        monkeypatch.setattr(os, "chmod", refused)
        registry.publish(number="2", text="VALUE = 2\n")
        assert str(registry.install().version) == "2"

    def test_an_installation_of_hours_is_not_swept(self, registry):
        """Its folder is as old as its beginning: the download goes into a file without a name."""
        registry.publish()
        with add.staging(registry.root) as scratch:
            os.utime(scratch, (0, 0))
            registry.install()
            assert os.path.isdir(scratch)

    def test_a_link_in_the_place_of_a_tree_is_replaced_and_what_it_leads_to_stays(self, registry):
        registry.publish()
        (part,) = registry.install().variants
        remove.remove(registry.root, "acme/plain", version.ANY)
        own = registry.scratch / "own"
        own.mkdir(mode=0o750)
        write(own, "mine.txt", "mine")
        os.symlink(own, part.folder)
        registry.install()
        assert not os.path.islink(part.folder)
        assert (own / "mine.txt").read_text() == "mine" and stat.S_IMODE(own.stat().st_mode) == 0o750


class TestRefused:
    def test_a_variant_with_another_digest_is_neither_placed_nor_are_the_others(self, registry):
        with_lie(registry)
        with pytest.raises(KernelInstallError, match="the blob holds other files than its tree"):
            registry.install(all_platforms=True)
        assert left(registry) == []

    def test_a_removal_at_the_same_time_takes_no_variant_that_is_kept(self, registry, monkeypatch):
        """Between reading what is there and holding the root."""
        registry.publish()
        registry.install()
        staging = add.staging
        choice = selection.choose("acme/plain", version.ANY, registry.sources())
        monkeypatch.setattr(install_release, "_complete", lambda *_arguments: None)

        def staged(root):
            monkeypatch.setattr(add, "staging", staging)
            remove.remove(root, "acme/plain", version.ANY)
            return staging(root)

        monkeypatch.setattr(add, "staging", staged)
        installed, _is_new = install_release.install_release(registry.root, choice)
        assert verify_installed.problems(installed, deep=True) == []


class TestRemove:
    def test_what_a_release_of_the_same_version_has_replaced_is_removed(self, registry):
        folder, trees = registry.packed(), registry.root.join("trees")
        for value in ("1", "2"):
            write(os.path.join(folder, "python"), "__init__.py", f"VALUE = {value}\n")
            (packed,) = pack(reading.read(folder), folder, QUICK)
            add.from_folders(registry.root, "acme/plain", [packed.folder])
            assert os.listdir(trees) == [packed.digest]

    def test_a_release_whose_file_is_damaged_is_reported_and_can_be_removed(self, registry):
        registry.publish()
        (part,) = registry.install().variants
        path = registry.root.release("acme/plain", "1")
        write(os.path.dirname(path), "1.json", "{")
        (damaged,) = releases.damaged(registry.root, "acme/plain")
        assert damaged == Version(1)
        (gone,) = remove.remove(registry.root, "acme/plain", version.ANY)
        assert str(gone.version) == "1" and not os.path.exists(part.folder) and releases.names(registry.root) == []

    def test_what_a_newer_opforge_has_installed_stays(self, registry):
        registry.publish()
        registry.publish("acme/other")
        (part,) = registry.install().variants
        registry.install("acme/other")
        change(registry.root.release("acme/plain", "1"), format=2)
        remove.remove(registry.root, "acme/other", version.ANY)
        assert os.path.isdir(part.folder)

    def test_a_removal_that_was_killed_is_completed_by_the_same_again(self, registry):
        registry.publish()
        (part,) = registry.install().variants
        os.unlink(registry.root.release("acme/plain", "1"))
        assert remove.remove(registry.root, "acme/plain", version.ANY) == []
        assert not os.path.exists(part.folder)

    def test_files_in_parts_of_those_who_were_killed_go_too(self, registry):
        registry.publish()
        registry.install()
        folders = (registry.root.join("releases"), registry.root.join("names", "acme", "plain"))
        for folder in folders:
            write(folder, "1.json.123.0a1b2c3d.tmp", "{")
        write(folders[0], "0" * 64, "of a release that is not installed")
        remove.remove(registry.root, "acme/other", version.ANY)
        assert [len(os.listdir(folder)) for folder in folders] == [1, 1]

    def test_removing_from_a_folder_without_packages_makes_nothing(self, registry):
        assert remove.remove(registry.root, "acme/plain", version.ANY) == []
        assert not os.path.exists(registry.root.path)

    @pytest.mark.parametrize("digest", ["../../../own", "../../own", ".."])
    def test_a_file_that_leads_elsewhere_removes_nothing_there(self, registry, digest):
        registry.publish()
        registry.install()
        own = os.path.join(registry.scratch, "own")
        write(registry.scratch, "own", "mine")
        write(registry.root.path, "own", "mine")
        change(registry.root.release("acme/plain", "1"), digest=digest)
        remove.remove(registry.root, "acme/plain", version.ANY)
        assert os.path.exists(own) and os.path.exists(os.path.join(registry.root.path, "own"))


@pytest.mark.parametrize(("scope", "advises"), [("environment", True), ("user", False)])
def test_the_option_that_was_typed_is_no_advice(scope, advises):
    error = add.unwritable(
        layout.Root("/nowhere", scope), "acme/plain", PermissionError(13, "Permission denied", "/nowhere")
    )
    assert ("--user" in str(error)) == advises and "/nowhere cannot be written (Permission denied)" in str(error)


def test_bytecode_goes_into_the_tree_alone(registry, monkeypatch, tmp_path):
    """With PYTHONPYCACHEPREFIX Python would keep it under the name of a staging folder."""
    import sys

    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "prefix"))
    registry.publish()
    registry.install()
    assert not (tmp_path / "prefix").exists()


def test_a_package_is_found_in_a_root_that_was_moved(registry, tmp_path):
    """An image is built in one folder and used in another."""
    registry.publish()
    registry.install()
    shutil.move(registry.root.path, tmp_path / "moved")
    moved = registry.root._replace(path=str(tmp_path / "moved"))
    (moved_release,) = releases.matching(moved, "acme/plain", version.ANY)
    assert verify_installed.problems(moved_release, deep=True) == []
    with pytest.raises(KernelNotFoundError):
        registry.install(numbers=7)
