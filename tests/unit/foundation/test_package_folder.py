"""`package_folder`: what was found of a package is kept while nothing that it followed from has changed."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys

import pytest

from opforge.fast_path import machine
from opforge.foundation import remembered_values

NAME = "a_package_that_is_not_imported"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two folders on sys.path; the second one has the package."""
    monkeypatch.setattr(remembered_values, "RACY_NS", 0)  # folders that were just made count as old
    monkeypatch.setattr(machine, "_found", {})
    paths = [tmp_path / "first", tmp_path / "second"]
    for path in paths:
        path.mkdir()
    made(paths[1])
    monkeypatch.setattr(sys, "path", [*map(str, paths), *sys.path])
    importlib.invalidate_caches()
    return paths


def made(folder):
    """Makes the package in a folder. Returns its path."""
    package = folder / NAME
    package.mkdir()
    (package / "__init__.py").write_text("")
    return str(package)


@pytest.fixture
def searches(monkeypatch):
    """The names that were searched by the import system."""
    names, find = [], importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: names.append(name) or find(name))
    return names


def test_a_package_is_searched_once(folders, searches):
    found = {machine.package_folder(NAME) for _ in range(500)}
    assert found == {str(folders[1] / NAME)} and searches == [NAME]


def test_one_that_appears_before_it_is_found(folders):
    assert machine.package_folder(NAME) == str(folders[1] / NAME)
    first = made(folders[0])
    importlib.invalidate_caches()  # of the import system: both changes may lie in one tick of the clock
    assert machine.package_folder(NAME) == first


def test_one_that_is_removed_is_not_found(folders):
    assert machine.package_folder(NAME)
    shutil.rmtree(folders[1] / NAME)
    importlib.invalidate_caches()
    assert machine.package_folder(NAME) is None
    assert machine.package_folder(NAME) is None, "and what is absent is kept too"
    made(folders[1])
    importlib.invalidate_caches()
    assert machine.package_folder(NAME) == str(folders[1] / NAME)


def test_other_paths_and_finders_lead_to_another_search(folders, monkeypatch):
    assert machine.package_folder(NAME) == str(folders[1] / NAME)
    monkeypatch.setattr(sys, "path", sys.path[2:])
    assert machine.package_folder(NAME) is None

    class Elsewhere:
        """A finder of another package manager."""

        @staticmethod
        def find_spec(name, path=None, target=None):
            return importlib.util.spec_from_file_location(name, "/elsewhere/package/__init__.py")

    monkeypatch.setattr(sys, "meta_path", [Elsewhere, *sys.meta_path])
    assert machine.package_folder(NAME) == "/elsewhere/package"


def test_folders_that_have_just_changed_are_searched_each_time(folders, searches, monkeypatch):
    monkeypatch.setattr(remembered_values, "RACY_NS", 10**12)
    machine.package_folder(NAME)
    machine.package_folder(NAME)
    assert searches == [NAME, NAME]
