"""The fuzz targets themselves, fed a few inputs: valid ones, damaged ones, noise."""

from __future__ import annotations

import importlib.util
import os
import random

import pytest
from support.paths import TESTS


def target(name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(TESTS, "fuzz", f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def archives(tmp_path):
    return target("fuzz_archive")


@pytest.fixture
def tickets(tmp_path, monkeypatch):
    module = target("fuzz_tickets")
    monkeypatch.setattr(module.host, "LINKERS", ())
    monkeypatch.setenv("CXX", "")
    return module.TicketTarget(str(tmp_path / "fuzz"))


def test_the_archive_target_takes_right_archives_and_refuses_others(archives, tmp_path):
    fuzz = archives.ArchiveTarget(str(tmp_path / "fuzz"))
    assert len(fuzz.one(fuzz.content)) == 2
    assert len(fuzz.one(bytes([archives.RECIPE]))) == 2, "a recipe without a step"
    assert fuzz.one(b"") == fuzz.one(b"noise") == []
    assert fuzz.one(archives.small_archive("/etc/here", b"x")) == []
    assert fuzz.one(archives.small_archive(f"entries/{'a' * 32}/manifest.json", b"{}")) == []


def test_the_archive_target_damages_a_right_archive_by_a_recipe(archives, tmp_path):
    fuzz = archives.ArchiveTarget(str(tmp_path / "fuzz"))
    assert fuzz.archive_of(bytes([archives.RECIPE, 0, 10, 2, 65])) != fuzz.content
    assert len(fuzz.archive_of(bytes([archives.RECIPE, 2, 0, 0, 0]))) == 512
    chance = random.Random(5)
    for _time in range(60):
        fuzz.one(bytes([archives.RECIPE, *chance.randbytes(4 * chance.randrange(1, 4))]))
        fuzz.one(chance.randbytes(chance.randrange(1500)))


def test_the_ticket_target_finds_what_is_right(tickets):
    for number, name in enumerate(("ticket", "manifest", "answer")):
        assert tickets.one(bytes([number]) + tickets.contents[name]) == tickets.result
        assert tickets.one(bytes([number, 0])) == tickets.result
    assert tickets.one(b"") is None or tickets.one(b"") == tickets.result


def test_the_ticket_target_bears_noise(tickets):
    chance = random.Random(6)
    for _time in range(40):
        for number in range(3):
            tickets.one(bytes([number]) + chance.randbytes(chance.randrange(40)))
            tickets.one(bytes([number, 0]) + chance.randbytes(3 * chance.randrange(1, 3)))
