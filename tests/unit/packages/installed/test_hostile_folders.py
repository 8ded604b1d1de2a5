"""Folders of packages whose metadata leads elsewhere: nothing outside of the root is made or changed."""

from __future__ import annotations

import json
import os
import stat

import pytest
from click.testing import CliRunner

import opforge
from opforge.cli import group
from opforge.errors import KernelIncompatibleError
from opforge.packages.form import digests, version
from opforge.packages.form.digests import SIZES
from opforge.packages.installed import releases
from opforge.packages.load import get_kernel as loading
from opforge.packages.registry import verify_installed
from opforge.remote import blobs

RECORD = {
    "abi": "torch-stable",
    "description": "a" * 32,
    "exports": [],
    "file": "x.so",
    "format": 1,
    "key": "b" * 32,
    "needs": [],
    "op": "plain",
    "plan": "c" * 32,
    "python_module": False,
    "sha256": "d" * 2 * SIZES["sha256"],
    "size": 1,
    "target": "cpu:x86-64",
}
"""What is read of a record before the library is compared with it."""


@pytest.fixture
def own(tmp_path):
    """A private folder of the user's, such as ~/.ssh."""
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    return folder


def installed(registry, **ours):
    """Installs a folder whose metadata says this; returns the exit code and what was printed."""
    folder = registry.packed()
    path = os.path.join(folder, "build", "torch-universal", "metadata.json")
    with open(path) as file:
        stated = json.load(file)
    stated["x-opforge"] |= ours
    with open(path, "w") as file:
        json.dump(stated, file)
    done = CliRunner().invoke(group, ["install", folder, "--into", registry.root.path], catch_exceptions=False)
    return done.exit_code, done.output


def is_untouched(folder):
    return os.listdir(folder) == [] and stat.S_IMODE(os.stat(folder).st_mode) == 0o700


@pytest.mark.parametrize("name", ["../../../own/plain", "../../../own", "acme/../../../../own/plain", "plain"])
def test_a_name_that_is_none_is_refused(registry, own, name):
    code, output = installed(registry, name=name)
    assert code == 1 and "Expected ORG/NAME in lower-case ASCII letters" in output
    assert is_untouched(own)


@pytest.mark.parametrize("field", ["description", "key"])
def test_the_record_of_a_library_leads_nowhere_else(registry, own, field):
    installed(registry, record=RECORD | {field: "../../../own/inside"}, library="__init__.py")
    assert is_untouched(own)


@pytest.mark.parametrize(("levels", "has_file"), [(33, True), (40, True), (33, False), (40, False)])
def test_a_package_with_too_many_levels_of_folders_is_no_traceback(registry, levels, has_file):
    packed = registry.packed()
    deep = os.path.join(packed, "build", "torch-universal", *("a" * levels))
    os.makedirs(deep)
    if has_file:
        open(os.path.join(deep, "file.txt"), "w").close()
    done = CliRunner().invoke(group, ["install", packed, "--into", registry.root.path], catch_exceptions=False)
    if has_file or levels > 33:
        assert done.exit_code == 1
        assert "has too many levels of folders" in done.output or "Unknown file: a/a/" in done.output
    else:
        assert done.exit_code == 0, "a folder without files is in no package"


def test_a_blob_with_too_many_levels_of_folders_is_refused(registry, monkeypatch):
    folder = os.path.join(registry.packed(), "build", "torch-universal")
    os.makedirs(os.path.join(folder, *("a" * 40)))
    open(os.path.join(folder, *("a" * 40), "file.txt"), "w").close()
    with open(registry.scratch / "blob", "w+b") as file:
        with monkeypatch.context() as patch:
            patch.setattr(digests, "MAX_LEVELS", 100)
            paths = [*digests.files_of(folder), "metadata.json"]
            tree, _hashes = blobs.pack(folder, paths, file)
        with pytest.raises(blobs.BlobError, match=r"cannot be unpacked: .* is below 40 levels of folders"):
            blobs.unpack(file, tree, str(registry.scratch / "unpacked"))


def linked(folder, name, elsewhere):
    """Puts a link into the place of a file; what it leads to has the same content."""
    path = os.path.join(folder, name)
    os.chmod(folder, 0o755)
    os.rename(path, elsewhere)
    os.symlink(elsewhere, path)


@pytest.mark.parametrize("name", ["__init__.py", "metadata.json"])
def test_a_folder_with_a_link_out_of_it_is_not_installed(registry, tmp_path, name):
    folder = registry.packed()
    linked(os.path.join(folder, "build", "torch-universal"), name, tmp_path / "elsewhere")
    done = CliRunner().invoke(group, ["install", folder, "--into", registry.root.path], catch_exceptions=False)
    assert done.exit_code == 1 and f"{name} is a link, or no file" in done.output
    assert not releases.names(registry.root)


@pytest.mark.parametrize("name", ["__init__.py", "metadata.json"])
def test_a_link_out_of_what_is_installed_is_a_change(registry, tmp_path, monkeypatch, name):
    """What it leads to may change later, and no stamp of the link would."""
    monkeypatch.setenv("OPFORGE_KERNEL_PATH", registry.root.path)
    registry.publish()
    (part,) = registry.install().variants
    linked(part.folder, name, tmp_path / "elsewhere")
    loading.reset()
    with pytest.raises(KernelIncompatibleError, match=rf"changed after it was installed \({name} is a link\): install"):
        opforge.get_kernel("acme/plain")
    (release,) = releases.matching(registry.root, "acme/plain", version.ANY)
    assert verify_installed.problems(release, deep=False) == [f"torch-universal: {name} is a link"]
    registry.install()
    assert opforge.get_kernel("acme/plain").VALUE == 1
