"""The fuzz targets, run with a few inputs: valid ones, damaged ones, and random bytes."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys

import pytest
from support.paths import TESTS


def fuzz_module(name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(TESTS, "fuzz", f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def fuzz_archive():
    return fuzz_module("fuzz_archive")


@pytest.fixture
def archive_target(fuzz_archive, tmp_path):
    return fuzz_archive.ArchiveTarget(str(tmp_path / "fuzz"))


@pytest.fixture
def lookup_target(tmp_path, monkeypatch):
    module = fuzz_module("fuzz_lookup")
    monkeypatch.setattr(module.host, "LINKERS", ())
    monkeypatch.setenv("CXX", "")
    return module.LookupTarget(str(tmp_path / "fuzz"))


def test_the_archive_target_publishes_the_entries_of_valid_archives_only(fuzz_archive, archive_target):
    assert len(archive_target.run(archive_target.content)) == 2
    assert len(archive_target.run(bytes([fuzz_archive.RECIPE]))) == 2, "a recipe without a step"
    assert archive_target.run(b"") == archive_target.run(b"noise") == []
    assert archive_target.run(fuzz_archive.small_archive("/etc/here", b"x")) == []
    assert archive_target.run(fuzz_archive.small_archive(f"entries/{'a' * 32}/manifest.json", b"{}")) == []


def test_a_recipe_damages_the_valid_archive(fuzz_archive, archive_target):
    assert archive_target.archive_of(bytes([fuzz_archive.RECIPE, 0, 10, 2, 65])) != archive_target.content
    assert len(archive_target.archive_of(bytes([fuzz_archive.RECIPE, 2, 0, 0, 0]))) == 512


def test_the_archive_target_accepts_random_recipes_and_random_bytes(fuzz_archive, archive_target):
    chance = random.Random(5)
    for _ in range(60):
        archive_target.run(bytes([fuzz_archive.RECIPE, *chance.randbytes(4 * chance.randrange(1, 4))]))
        archive_target.run(chance.randbytes(chance.randrange(1500)))


def test_the_lookup_target_finds_the_entry_with_valid_files(lookup_target):
    for number, name in enumerate(("record", "manifest", "memo")):
        assert lookup_target.run(bytes([number]) + lookup_target.contents[name]) == lookup_target.key
        assert lookup_target.run(bytes([number, 0])) == lookup_target.key
    assert lookup_target.run(b"") in (None, lookup_target.key)


def test_the_lookup_target_accepts_random_bytes(lookup_target):
    chance = random.Random(6)
    for _ in range(40):
        for number in range(3):
            lookup_target.run(bytes([number]) + chance.randbytes(chance.randrange(40)))
            lookup_target.run(bytes([number, 0]) + chance.randbytes(3 * chance.randrange(1, 3)))


@pytest.mark.parametrize("name", ["fuzz_archive", "fuzz_lookup"])
def test_a_fuzz_target_can_be_run_as_a_script(name):
    """Without atheris it ends at the import of atheris: everything else was imported."""
    code = "import runpy, sys; sys.modules['atheris'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-c", code, os.path.join(TESTS, "fuzz", f"{name}.py")]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.stderr.splitlines()[-1].startswith("ModuleNotFoundError: import of atheris")
