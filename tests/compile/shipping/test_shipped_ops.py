"""Layers inside installed packages: found by the packages' own builders, trusted as their code is."""

from __future__ import annotations

import os
import sys
import types

import pytest
from support import sample_ops
from support.store.fake_store import ME

from opforge import trust
from opforge.builders.declaration.description import description_key
from opforge.builders.lookup.finder import find, package_sources
from opforge.cache.layout import PACKAGE_LAYER
from opforge.cache.transfer import layer


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
    assert package_sources(package().spec().package, ME)
    assert not package_sources(other().spec().package, ME) and find(other().spec()).entry is None


def test_a_library_may_have_the_permissions_of_its_package_but_no_wider_ones(package, tmp_path, monkeypatch):
    monkeypatch.setattr(trust, "is_private_group", lambda _gid: False)
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
