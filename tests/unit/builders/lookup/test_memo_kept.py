"""What a look-up came to is remembered: when the next one takes it, and when none is left."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest
from support import fake_disk, text_files
from support.compilers import fake_compiler

from opforge.builders.lookup.finder import find
from opforge.builders.toolchains import find_toolchain, probe
from opforge.cache.filesystem.disk import Disk
from opforge.cache.store import Store


def test_the_second_look_up_makes_no_plan_and_asks_no_compiler(world, monkeypatch):
    monkeypatch.setattr(probe, "try_run", lambda *_arguments, **_options: pytest.fail("a compiler was asked"))
    assert world.find() == (world.result, False)
    assert len(world.answers()) == 1


def test_paranoia_neither_takes_nor_leaves_an_answer(world, monkeypatch):
    shutil.rmtree(world.folder / "store" / "v1" / "answers")
    monkeypatch.setenv("OPFORGE_PARANOID", "1")
    assert world.find() == (world.result, True)
    assert world.answers() == []


def test_a_builder_that_shapes_its_spec_is_remembered_by_that_spec(world):
    plain = world.cls

    class Shaped(plain):
        def spec(self):
            return super().spec()._replace(version="2")

    Shaped.__module__ = plain.__module__
    world.cls = Shaped
    assert world.find() == (None, True), "the entry that was published is of another version"
    world.cls = plain
    assert world.find() == (world.result, False)


def test_a_toolchain_that_a_caller_hands_in_leaves_no_memo(world):
    shutil.rmtree(world.folder / "store" / "v1" / "answers")
    spec = world.cls().spec()
    assert find(spec, world.store(), find_toolchain=find_toolchain).entry.key == world.result
    assert world.answers() == []


def test_a_file_too_young_to_trust_its_stamp_leaves_no_answer(world, monkeypatch):
    """A compiler that is replaced within one tick of a coarse clock keeps its stamp, and so does its folder."""
    shutil.rmtree(world.folder / "store" / "v1" / "answers")
    os.utime(world.early)
    monkeypatch.setattr(fake_disk.LaterDisk, "now_ns", Disk.now_ns)
    world.find()
    assert world.answers() == []


def test_an_input_too_young_to_trust_its_stamp_leaves_no_answer(world):
    shutil.rmtree(world.folder / "store" / "v1" / "answers")
    soon = time.time() + 3600
    os.utime(world.op / "value.h", (soon, soon))
    assert world.find() == (world.result, True)
    assert world.answers() == []


def test_what_changes_between_the_plan_and_its_answer_is_not_vouched_for(world, monkeypatch):
    shutil.rmtree(world.folder / "store" / "v1" / "answers")
    real = Store.get

    def get(*arguments):
        fake_compiler.create(world.early, version="13.1")
        text_files.write(world.folder, "mine/include", "")
        return real(*arguments)

    monkeypatch.setattr(Store, "get", get)
    world.find()
    monkeypatch.setattr(Store, "get", real)
    assert world.find() == (None, True)


def test_an_answer_that_cannot_be_filed_harms_nothing(world):
    shutil.rmtree(world.folder / "store" / "v1" / "answers")
    text_files.write(world.folder / "store" / "v1", "answers", "a file in the folder's place")
    assert world.find() == (world.result, True)
    assert world.find() == (world.result, True)


def test_an_answer_notes_the_use_at_most_once_an_hour(world):
    (answer,) = world.answers()
    ticket = json.loads(answer.read_text())["filed"]
    for path in (answer, ticket):
        os.utime(path, (1, 1))
    world.find()
    assert os.stat(ticket).st_mtime > 1 and os.stat(answer).st_mtime > 1
