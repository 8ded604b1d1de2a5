"""docs/versions.md has the rows that `make matrix` wrote, and no others."""

from __future__ import annotations

import json
import os
import sys

import pytest
from support import scripts


@pytest.fixture(scope="module")
def matrix():
    """The script .ci/matrix.py, as a module."""
    return scripts.load(".ci/matrix.py")


def test_the_page_has_the_rows_of_the_file(matrix):
    rows = [*matrix.read_rows().values()]
    with open(matrix.PAGE, encoding="utf-8") as page:
        assert rows and matrix.table(rows) in page.read()
    assert rows == sorted(rows, key=matrix.order)
    for row in rows:
        assert row["state"] in ("ok", "failed", "not run")
        assert row["state"] == "ok" or row["reason"], "what was not run, or failed, has its reason"
        assert row["state"] != "ok" or (row["versions"] and set(row["layer"]) == set(row["built"]) == {"ok"})


def test_a_failed_row_is_shown_with_its_reason_and_a_new_one_keeps_the_others(matrix, tmp_path, monkeypatch):
    page = tmp_path / "versions.md"
    page.write_text(f"before\n\n{matrix.BEGIN}\nold\n{matrix.END}\n\nafter\n")
    monkeypatch.setattr(matrix, "PAGE", str(page))
    monkeypatch.setattr(matrix, "RESULTS", str(tmp_path / "versions.json"))
    good = {"torch": "2.13.0", "python": "3.11", "date": "2026-01-02", "state": "ok", "versions": "3.11.7 2.13.0+cpu"}
    good |= {"system": "glibc 2.36, g++ 12.2.0", "layer": {"ok": 3}, "built": {"ok": 1}, "tests": "9 passed"}
    absent = {"torch": "2.13.0", "python": "3.9", "date": "2026-01-03", "state": "not run", "reason": "none is here"}
    matrix.write({"a": good})
    failed = {"torch": "2.14.1", "python": "3.9", "date": "2026-01-04", "state": "failed", "reason": "E [1] <\n`a`|b"}
    matrix.write({**matrix.read_rows(), "b": absent, "c": failed})
    assert [row["python"] for row in json.loads((tmp_path / "versions.json").read_text())] == ["3.9", "3.11", "3.9"]
    text = page.read_text()
    assert "| 2.13.0 | 3.9 |  | 2026-01-03 | not run: none is here |  |  |\n" in text
    assert "| 2.13.0+cpu | 3.11.7 | glibc 2.36, g++ 12.2.0 | 2026-01-02 | 3 ok | 1 ok | 9 passed |\n" in text
    assert "| 2.14.1 | 3.9 |  | 2026-01-04 | failed: `E [1] < 'a'/b` |  |  |\n" in text
    assert text.startswith("before\n") and text.endswith("\n\nafter\n") and "old" not in text


def test_an_interpreter_is_found_here_or_on_path_or_not_at_all(matrix, tmp_path, monkeypatch):
    assert matrix.find_interpreter(matrix.HERE) == sys.executable
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    broken = tmp_path / "python3.99"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert matrix.find_interpreter("3.99") == "", "one of a name that leads nowhere is none"
    own = tmp_path / "pyenv" / "versions" / "3.99.1" / "bin" / "python3"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    assert matrix.find_interpreter("3.99") == str(own)
    assert matrix.find_interpreter("3.99t") == "", "the free-threaded one is another"


def test_what_was_wrong_is_told_in_pips_own_words(matrix):
    lines = ["Collecting torch", "ERROR: Cannot install torch==9.0", "The user requested (constraint) torch<=2.14.1"]
    output = "\n".join([*lines, lines[1], "ERROR: for help visit the page"])
    text = "ERROR: Cannot install torch==9.0; The user requested (constraint) torch<=2.14.1"
    assert matrix.problem(output) == text
    assert matrix.problem("a\nb\nc\nd\n") == "b; c; d"


def test_of_ops_that_are_wrong_the_check_says_which_and_why(matrix):
    good = {"name": "Fine", "state": "ok", "stage": "", "reason": "", "printed": ""}
    bad = {"name": "Adam", "state": "failed", "stage": "reference", "reason": "1.5 is not 1.0", "printed": ""}
    worse = {"name": "Lion", "state": "crashed", "stage": "load", "reason": "signal 11", "printed": "Segmentation"}
    text = "Adam failed (reference): 1.5 is not 1.0; Lion crashed (load): signal 11 Segmentation"
    assert matrix.wrong_ops(json.dumps({"machine": {}, "results": [good, bad, worse]})) == text
    for other in ("", "Traceback", '{"error": "MemoryError"}', "[1]"):
        assert matrix.wrong_ops(other) == ""
    code = f"import sys; print({json.dumps(json.dumps({'results': [bad]}))}); sys.exit(1)"
    with pytest.raises(matrix.StepError, match="Adam failed"):
        matrix.run([sys.executable, "-c", code])


@pytest.fixture
def chroot(matrix):
    """The script .ci/chroot.py, as a module."""
    return sys.modules["chroot"]


def test_a_row_says_why_there_is_no_debian(matrix, chroot, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert chroot.problem() == "debootstrap needs root"
    with pytest.raises(chroot.ChrootError, match="debootstrap needs root"):
        chroot.made(str(tmp_path / "debian"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert chroot.problem() == "debootstrap and chroot and unshare and mount not found on PATH"
    folders = matrix.Folders("", "", (), None, "debootstrap needs root")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    row = matrix.run_row("2.15.0", "3.99", folders)
    expected = "there was no such interpreter on the machine, and no other one: debootstrap needs root"
    assert (row["state"], row["reason"]) == ("not run", expected)


def test_a_command_in_a_debian_sees_the_folders_of_its_row(chroot, tmp_path):
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "usr" / "bin" / "python3.15").write_text("")
    debian = chroot.Chroot(str(tmp_path), ("/work", "/layer"))
    command = debian.command(["python3.15", "-V"], "/work")
    assert command[:5] == ["unshare", "--mount", "sh", "-c", chroot.ENTER]
    assert command[5:] == ["sh", str(tmp_path), "/proc", "/dev", "/work", "/layer", "--", "/work", "python3.15", "-V"]
    assert (debian.interpreter("3.15"), debian.interpreter("3.99")) == ("/usr/bin/python3.15", "")


def test_of_the_newest_pythons_the_first_that_can_be_installed_is_a_row(matrix, monkeypatch):
    monkeypatch.setattr(matrix, "listed_releases", lambda: ["2.10.0"])
    rows, asked = {}, []
    for torch, python in matrix.selected(rows, [], []):
        asked.append(python)
        state = "not run" if python == matrix.NEWEST[0] else "ok"
        rows[matrix.key(torch, python)] = {"torch": torch, "python": python, "state": state}
    assert asked == [matrix.HERE, *matrix.NEWEST[:2], "3.14t"]
