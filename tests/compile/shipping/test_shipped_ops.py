"""Layers inside installed packages: found by the packages' own builders, trusted as their code is."""

from __future__ import annotations

import os
import shutil
import sys
import types

import pytest
from support import sample_ops
from support.store.fake_store import ME

from opforge.builders.declaration.description import description_key
from opforge.builders.load_op import find
from opforge.cache import layer
from opforge.cache.layout import PACKAGE_LAYER
from opforge.fast_path.lookup import package_places
from opforge.foundation import file_owners


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The builder class of an installed package whose layer has an entry for it."""
    folder = tmp_path / "site" / "mine"
    cls = sample_ops.plain_op(folder, value=7)
    name = sample_ops.unique_name("mine")
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[name].__path__ = [str(folder)]
    ops = types.ModuleType(f"{name}.ops")
    ops.__file__ = str(folder / "ops.py")
    monkeypatch.setitem(sys.modules, f"{name}.ops", ops)
    cls.__module__ = f"{name}.ops"
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "builder"))
    builder = cls("cpu:x86-64" if os.uname().machine == "x86_64" else None)
    layer.add(str(folder / PACKAGE_LAYER), builder.build(), description_key(builder.spec()), ME)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "mine"))
    return cls


def test_a_package_serves_its_own_builders_without_any_setting(package, tmp_path, monkeypatch):
    entry = find(package().spec()).entry
    assert entry.origin == str(tmp_path / "site" / "mine" / "_opforge_ops")
    monkeypatch.setenv("OPFORGE_PREBUILT", "ignore")
    assert find(package().spec()).entry is None


def test_builders_of_other_packages_are_not_served(package, tmp_path):
    other = sample_ops.builder_class(tmp_path / "site" / "mine", "plain", abi="c")
    assert package_places(package().spec().package, ME)
    assert not package_places(other().spec().package, ME) and find(other().spec()).entry is None


def test_a_library_may_have_the_permissions_of_its_package_but_no_wider_ones(package, tmp_path, monkeypatch):
    monkeypatch.setattr(file_owners, "is_private_group", lambda _gid: False)
    folder = tmp_path / "site" / "mine"
    library = find(package().spec()).entry.library
    os.chmod(library, 0o775)  # as pip installs it with a umask that lets groups write
    entry, rejected = find(package().spec())
    assert entry is None
    assert any("can be written by others (mode 775)" in skipped.reason for skipped in rejected)
    os.chmod(folder, 0o775)
    assert find(package().spec()).entry.library == library
    os.chmod(library, 0o777)
    assert find(package().spec()).entry is None


def test_a_layer_of_the_setting_takes_precedence(package, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(tmp_path / "named"))
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "builder"))
    builder = package("cpu:x86-64" if os.uname().machine == "x86_64" else None)
    layer.add(str(tmp_path / "named"), builder.build(), description_key(builder.spec()), ME)
    assert find(package().spec()).entry.origin == str(tmp_path / "named")


def link(real, folder):
    """Makes a folder with a link for each file below another one."""
    for parent, _folders, names in os.walk(real):
        below = folder / os.path.relpath(parent, real)
        below.mkdir()
        for name in names:
            (below / name).symlink_to(os.path.join(parent, name))


def as_links(folder, real, level="files"):
    """Moves a package's layer away and puts links in its place: one for each file, or for the folders of a level."""
    shutil.move(folder / PACKAGE_LAYER, real)
    if level == "files":
        link(real, folder / PACKAGE_LAYER)
        return
    above = folder / PACKAGE_LAYER / os.path.dirname(level)
    above.mkdir(parents=True)
    for name in os.listdir(real / os.path.dirname(level)):
        (above / name).symlink_to(real / os.path.dirname(level) / name)


@pytest.mark.parametrize("level", ["files", "v2", "v2/entries"])
def test_a_wheel_whose_files_or_folders_are_links_is_served(package, tmp_path, level):
    """As `uv --link-mode symlink`, Bazel and Spack install it."""
    as_links(tmp_path / "site" / "mine", tmp_path / "archive", level)
    entry = find(package().spec()).entry
    assert entry.origin == str(tmp_path / "site" / "mine" / "_opforge_ops")
    assert package().load().value() == 7


def test_a_link_into_a_folder_that_others_may_write_is_not_followed_and_one_warning_says_so(package, tmp_path, caplog):
    as_links(tmp_path / "site" / "mine", tmp_path / "archive", "files")
    (tmp_path / "archive").chmod(0o777)
    for _look_up in range(2):
        entry, rejected = find(package().spec())
        assert entry is None
        assert any(f"and {tmp_path}/archive can be written by everybody" in skipped.reason for skipped in rejected)
    (warning,) = [record.getMessage() for record in caplog.records if "Reinstall" in record.getMessage()]
    assert "_opforge_ops/v2/entries/" in warning and "is not used: it is a link to " in warning
    assert warning.endswith("Reinstall its package, with copies if its files are links (uv: --link-mode copy).")


def test_a_link_into_a_folder_that_the_user_trusts_is_followed(package, tmp_path, monkeypatch):
    """As on a volume of Kubernetes that its group may write."""
    as_links(tmp_path / "site" / "mine", tmp_path / "archive", "files")
    (tmp_path / "archive").chmod(0o777)
    monkeypatch.setenv("OPFORGE_TRUSTED_FOLDERS", str(tmp_path / "archive"))
    assert find(package().spec()).entry.origin == str(tmp_path / "site" / "mine" / "_opforge_ops")


def test_a_wheel_whose_library_is_damaged_is_not_used_and_one_warning_says_so(package, caplog):
    library = find(package().spec()).entry.library
    os.chmod(library, 0o700)
    with open(library, "r+b") as file:
        file.write(b"\0\0")
    assert find(package().spec()).entry is None
    (warning,) = [record.getMessage() for record in caplog.records if "Reinstall" in record.getMessage()]
    assert f"{os.path.dirname(library)} is not used: the library's digest differs from its record's." in warning


def test_a_named_layer_has_no_links_inside(package, tmp_path, monkeypatch):
    shutil.move(tmp_path / "site" / "mine" / PACKAGE_LAYER, tmp_path / "real")
    named = tmp_path / "named"
    link(tmp_path / "real", named)
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(named))
    entry, rejected = find(package().spec())
    assert entry is None and any(skipped.reason == "the library is a link" for skipped in rejected)
