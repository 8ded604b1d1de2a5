"""`opforge cache`: what it prints, in a pipe and as JSON, and its exit codes."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner
from support import text_files
from support.store.fake_store import MadeUpStore

from opforge.cache.maintenance import gc
from opforge.cli import group


@pytest.fixture
def made(own_store, tmp_path):
    return MadeUpStore(own_store, tmp_path / "src")


def run(*arguments, **options):
    return CliRunner().invoke(group, ["cache", *arguments], **options)


def told(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def test_path_prints_the_folder(own_store):
    assert run("path").output == f"{own_store}\n"
    assert told("path") == {"path": str(own_store), "chosen": True, "layers": []}


def test_looking_at_a_cache_makes_none(own_store):
    for command in ("ls", "stats", "verify", "gc"):
        assert run(command).exit_code == 0
    assert not os.path.exists(own_store)


def test_ls_in_a_pipe_prints_tab_separated_lines(made):
    result = made.add()
    header, line = run("ls").output.splitlines()
    assert header.split("\t") == ["OP", "TARGET", "ABI", "SIZE", "AGE", "USED", "KEY", "PATH"]
    cells = line.split("\t")
    assert cells[:3] == ["relu", "cpu:x86-64-v3", "c"] and cells[6:] == [result[:12], made.library(result)]
    assert cells[4].endswith(" s")


def test_ls_as_json(made):
    result = made.add()
    (entry,) = told("ls")
    assert entry["result"] == result and entry["op"] == "relu" and entry["path"] == made.library(result)


def test_stats_count_entries_by_op(made):
    made.add("relu"), made.add("relu", text="int b;"), made.add("adam")
    stats = told("stats")
    assert stats["entries"] == 3 and stats["ops"]["relu"]["entries"] == 2 and stats["ops"]["adam"]["seconds"] == 1.5
    assert stats["bytes"] == sum(one["bytes"] for one in stats["folders"].values())
    assert run("stats").output.splitlines()[0].startswith(f"{made.layout}: 3 entries, ")


def test_verify_passes_sound_entries(made):
    made.add()
    done = run("verify")
    assert done.exit_code == 0 and done.stdout == "1 entry checked, 0 damaged\n"


def test_verify_fails_where_an_entry_is_damaged(made):
    path = made.library(made.add())
    made.spoil(os.path.basename(os.path.dirname(path)))
    done = run("verify")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        f"damaged relu: the library's digest differs from its manifest's ({path})",
        "1 entry checked, 1 damaged and set aside",
    ]
    assert run("verify").exit_code == 0


def test_verify_tells_what_it_could_not_set_aside(made, monkeypatch):
    folder = made.layout.entry(made.add())
    made.close(monkeypatch, os.path.basename(folder))
    done = run("verify")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        f"damaged {os.path.basename(folder)}: its manifest cannot be read ({folder})",
        "1 entry checked, 1 damaged, 1 of them not set aside",
    ]


def test_an_archive_that_cannot_be_written_is_wrong_usage(made, tmp_path):
    made.add()
    done = run("export", str(tmp_path / "nowhere" / "a.tar"))
    assert done.exit_code == 2 and "a.tar cannot be written: No such file or directory. Choose another" in done.stderr


def test_a_cache_that_no_home_leads_to_is_an_error(monkeypatch):
    monkeypatch.delenv("OPFORGE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without HOME whom no table knows
    done = run("stats")
    assert done.exit_code == 1 and "no home folder leads to it. Set HOME or OPFORGE_CACHE_DIR" in done.stderr


def test_gc_says_what_it_removes(made, monkeypatch):
    monkeypatch.setattr(gc, "GRACE_SECONDS", 0.0)
    folder = made.layout.entry(made.add())
    dry = run("gc", "--max-size", "0", "--dry-run").output
    assert dry.startswith("would remove relu, ") and f": {folder} (the least recently used, " in dry
    assert os.path.isdir(folder)
    assert run("gc", "--max-size", "0").output.splitlines()[1].startswith("removed 1 entry, 1 ticket, 1 description, ")
    assert not os.path.exists(folder)
    assert told("gc", "--max-size", "0") == {"dry_run": False, "bytes": 0, "removed": []}


def test_gc_goes_by_the_limits_of_the_environment(made, monkeypatch):
    monkeypatch.setattr(gc, "GRACE_SECONDS", 0.0)
    folder = made.layout.entry(made.add())
    assert run("gc").exit_code == 0 and os.path.isdir(folder)
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", "10Q")
    assert "OPFORGE_CACHE_MAX_SIZE='10Q' cannot be used: expected a number with B" in run("gc").stderr
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", "1B")
    assert run("gc").exit_code == 0 and not os.path.exists(folder)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--max-size", "much", "'much' is no size: expected a number with B, KiB, MB or the like, such as 2GiB"),
        ("--max-age", "3y", "'3y' is no age: expected a number with s, min, h, d or w, such as 30d"),
    ],
)
def test_a_limit_that_cannot_be_read_is_wrong_usage(option, value, text):
    done = run("gc", option, value)
    assert done.exit_code == 2 and f"Invalid value for '{option}': {text}" in done.output


def test_clear_asks_first(made):
    made.add()
    done = run("clear")
    assert done.exit_code == 2 and "nobody can be asked here: add --yes to clear the cache." in done.output
    assert len(made.held()) == 1
    assert run("clear", "--yes").exit_code == 0 and made.held() == set()


def test_clear_of_one_op_takes_its_name_in_any_form(made):
    made.add("cpu_adam")
    kept = made.add("relu")
    assert run("clear", "--yes", "CPUAdamBuilder").exit_code == 0
    assert made.held() == {kept}


def test_clear_of_an_op_that_is_not_stored_names_those_that_are(made):
    made.add("relu")
    done = run("clear", "--yes", "gelu")
    assert done.exit_code == 2 and "the cache has no entry of 'gelu'; it holds: relu." in done.output


def test_a_folder_that_cannot_be_trusted_is_refused(tmp_path, monkeypatch):
    path = text_files.write(tmp_path, "file", "")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", path)
    done = run("ls")
    assert done.exit_code == 1 and done.stdout == ""
    assert done.stderr.startswith(f"error: The cache folder {path} cannot be used: {path} is not a folder. Choose")
    assert told("ls")["error"] == "CacheDirError"
