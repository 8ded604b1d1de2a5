"""Layers inside installed packages: found by their own builders, trusted as far as the code beside them is."""

from __future__ import annotations

import os
import sys
import types

import pytest
from support import sample_ops

from opforge.builders.lookup.finder import find, layers_of
from opforge.builders.spec.description import describe
from opforge.cache.layout import PACKAGE_LAYER
from opforge.cache.transfer import layer


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with an op, and an entry for it in its own layer; gives the builder's class."""
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
    layer.add(str(folder / PACKAGE_LAYER), builder.build(), describe(builder.spec()).key)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "mine"))
    return cls


def test_a_package_serves_its_own_builders_and_no_setting_is_needed(package, tmp_path, monkeypatch):
    entry = find(package().spec()).entry
    assert entry.origin == str(tmp_path / "site" / "mine" / "_opforge_ops")
    monkeypatch.setenv("OPFORGE_PREBUILT", "ignore")
    assert find(package().spec()).entry is None


def test_another_packages_builders_are_not_served(package, tmp_path):
    other = sample_ops.builder_class(tmp_path / "site" / "mine", "plain", abi="c")
    assert layers_of(package) and not layers_of(other) and find(other().spec()).entry is None


def test_a_library_may_be_as_open_as_the_code_beside_it_and_no_more(package, tmp_path):
    folder = tmp_path / "site" / "mine"
    library = find(package().spec()).entry.library
    os.chmod(library, 0o775)  # as pip leaves it where groups may write
    builder = package()
    assert find(builder.spec()).entry is None
    assert any("can be written by others (mode 775)" in one.reason for one in builder.trace)
    os.chmod(folder, 0o775)
    assert find(package().spec()).entry.library == library
    os.chmod(library, 0o777)
    assert find(package().spec()).entry is None


def test_a_layer_that_is_named_comes_first(package, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(tmp_path / "named"))
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "builder"))
    builder = package("cpu:x86-64" if os.uname().machine == "x86_64" else None)
    layer.add(str(tmp_path / "named"), builder.build(), describe(builder.spec()).key)
    assert find(package().spec()).entry.origin == str(tmp_path / "named")
