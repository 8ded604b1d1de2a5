"""Ops of `opforge.load` and `load_inline` on the command line, where no package declares them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import sample_ops, text_files

import opforge
from opforge.cli import group
from opforge.foundation import remembered_values
from opforge.foundation.remembered_values import RACY_NS


def run(*arguments):
    return CliRunner().invoke(group, list(arguments))


def listed():
    return json.loads(run("ls", "--json").stdout)["ops"]


@pytest.fixture
def plain(tmp_path):
    """Loads an op of one's own until the look-up is remembered, and returns its folder.

    The first is not, because the files are new; nor is one while another process changes a folder of PATH.
    """
    sample_ops.set_value(tmp_path, 1)
    text_files.write(tmp_path, "plain.cpp", sample_ops.PLAIN_SOURCE)
    opforge.load("of_load", str(tmp_path / "plain.cpp"))
    for _attempt in range(5):
        time.sleep(RACY_NS / 1e9 + 0.1)
        opforge.load("of_load", str(tmp_path / "plain.cpp"))
        if any(
            "/value.h" in path.read_text()
            for folder in remembered_values.kept_folders()
            for path in Path(folder).iterdir()
        ):
            break
    return tmp_path


def test_an_op_of_load_is_explained_by_name_and_by_key(plain):
    (entry,) = listed()
    for name in ("of_load", "op:OfLoad", f"op:{entry['result'][:3]}", entry["path"]):
        done = run("cache", "explain", name)
        assert done.exit_code == 0 and done.stdout.startswith("hit: of_load for cpu:"), done.output
    sample_ops.set_value(plain, 2)
    done = run("cache", "explain", "of_load")
    assert done.exit_code == 1 and done.stdout.startswith("miss: of_load for cpu:")
    assert f"{plain}/value.h has changed (" in done.stdout
    assert run("inspect", entry["result"][:3]).stdout == run("inspect", "of_load").stdout


def test_an_edited_op_is_explained_once_whatever_its_earlier_versions_were(plain):
    for value in (2, 3):
        sample_ops.set_value(plain, value)
        opforge.load("of_load", str(plain / "plain.cpp"))
    sample_ops.set_value(plain, 2)
    done = run("cache", "explain", "of_load")
    assert done.exit_code == 0 and done.stdout.startswith("hit: of_load for cpu:") and done.stdout.count("\n") == 1, (
        done.output
    )
    sample_ops.set_value(plain, 4)
    done = run("cache", "explain", "of_load")
    assert done.exit_code == 1 and done.stdout.count("miss: of_load for cpu:") == 1, done.stdout


def test_a_folder_of_an_ops_name_with_nothing_to_inspect_does_not_hide_the_op(plain, monkeypatch):
    of_op = run("inspect", "of_load").stdout
    package = plain / "of_load"  # the package of a project has its op's name
    text_files.write(package, "__init__.py", "")
    monkeypatch.chdir(plain)
    assert run("inspect", "of_load").stdout == of_op and "op of_load for cpu:" in of_op
    done = run("inspect", "./of_load")
    assert done.exit_code == 1 and "./of_load cannot be inspected: the folder holds no such file" in done.stderr


def test_changed_flags_and_a_folder_that_is_not_known_are_explained(plain, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-O1")
    record = json.loads(run("cache", "explain", "of_load", "--json").stdout)
    assert not record["hit"] and record["nearest"]["files"] == []
    assert [part["text"] for part in record["nearest"]["components"]] == ["CXXFLAGS: is new: -O1"]
    monkeypatch.delenv("CXXFLAGS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(plain / "another-machine"))
    done = run("cache", "explain", "of_load")
    assert done.exit_code == 1 and "own/plain.cpp there is no root 'own' here" in done.stdout
    assert "is not remembered here yet: load the op once more, or run this command in that folder" in done.stderr
    monkeypatch.chdir(plain)
    assert run("cache", "explain", "of_load").stdout.startswith("hit: of_load for cpu:")


def test_an_inline_op_is_named_like_any_other():
    opforge.load_inline("inlined", 'extern "C" int seven() { return 7; }', abi="c")
    (entry,) = listed()
    assert run("cache", "pin", entry["result"][:4]).stdout == f"pinned inlined {entry['result'][:12]}\n"
    assert "op inlined for cpu:" in run("inspect", "inlined").stdout
    assert run("rm", "inlined").exit_code == 0 and listed() == []


def test_a_name_near_a_stored_op_is_suggested(tmp_path):
    sample_ops.plain_op(tmp_path, name="of_load")().build()
    for command in (("inspect",), ("cache", "explain")):
        done = run(*command, "of_laod")
        assert done.exit_code == 2 and "In the cache: of_load." in done.stderr
