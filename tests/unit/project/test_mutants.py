"""The defects that are put back by hand: each can still be put back."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from facade import mutants as of_facade
from support import scripts
from support.paths import CHECKOUT

by_hand = scripts.load("tests/mutants/by_hand.py")


@pytest.mark.parametrize("name", by_hand.EDITS)
def test_the_text_that_a_defect_replaces_is_there_once(name):
    edit = by_hand.EDITS[name]
    with open(os.path.join(CHECKOUT, edit.path)) as file:
        assert file.read().count(edit.old) == 1, f"write {name} of tests/mutants/by_hand.py for the code of today"
    assert edit.old != edit.new


@pytest.mark.parametrize("name", of_facade.MUTANTS)
def test_the_text_that_a_defect_of_the_facade_replaces_is_there_once(name, tmp_path):
    of_facade.mutated(of_facade.MUTANTS[name], tmp_path)


def test_there_is_a_defect_for_each_kind_of_harm():
    assert len(by_hand.EDITS) >= 30
    for path in {place.partition("::")[0] for edit in by_hand.EDITS.values() for place in edit.tests}:
        assert os.path.exists(os.path.join(CHECKOUT, path)), path


def test_a_test_whose_file_is_gone_finds_no_defect(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    copy = scripts.load("tests/mutants/__main__.py").Copy(Path(CHECKOUT), "first", 60)
    assert copy.run(["tests/unit/moved/test_gone.py::test_that_found_a_defect_before"]) == ""
