"""`opforge cache`, and `ls`, `rm`, `verify` and `gc` without a URL: what they print, and their exit codes."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner
from support import text_files
from support.store.fake_store import FakeStore

from opforge.cache.maintenance import gc
from opforge.cli import group


@pytest.fixture
def store(own_store, tmp_path):
    return FakeStore(own_store, tmp_path / "src")


def run(*arguments, **options):
    words = arguments if arguments[0] in ("ls", "rm", "verify", "gc") else ("cache", *arguments)
    return CliRunner().invoke(group, list(words), **options)


def document(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def test_path_prints_the_cache_folder(own_store):
    assert run("path").output == f"{own_store}\n"
    assert document("path") == {"path": str(own_store), "chosen": True, "layers": []}


def test_commands_that_only_read_do_not_create_the_cache(own_store):
    for command in ("ls", "stats", "verify", "gc"):
        assert run(command).exit_code == 0
    assert not os.path.exists(own_store)


def test_ls_in_a_pipe_prints_tab_separated_lines(store):
    result = store.add()
    header, line = run("ls").output.splitlines()
    assert header.split("\t") == ["OP", "TARGET", "ABI", "SIZE", "AGE", "USED", "KEY", "PATH"]
    cells = line.split("\t")
    assert cells[:3] == ["relu", "cpu:x86-64-v3", "c"] and cells[6:] == [result[:12], store.library(result)]
    assert cells[4].endswith(" s")


def test_ls_as_json(store):
    result = store.add()
    (entry,) = document("ls")["ops"]
    assert entry["result"] == result and entry["op"] == "relu" and entry["path"] == store.library(result)


def test_stats_count_entries_by_op(store):
    store.add("relu"), store.add("relu", text="int b;"), store.add("adam")
    stats = document("stats")
    assert stats["entries"] == 3 and stats["ops"]["relu"]["entries"] == 2 and stats["ops"]["adam"]["seconds"] == 1.5
    assert stats["bytes"] == sum(folder["bytes"] for folder in stats["folders"].values())
    assert run("stats").output.splitlines()[0].startswith(f"{store.layout}: 3 entries, ")


def test_verify_succeeds_if_no_entry_is_damaged(store):
    store.add()
    done = run("verify")
    assert done.exit_code == 0 and done.stdout == "1 entry checked, 0 damaged\n"


def test_verify_fails_if_an_entry_is_damaged(store):
    path = store.library(store.add())
    store.damage(os.path.basename(os.path.dirname(path)))
    done = run("verify")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        f"damaged relu: the library's digest differs from its record's ({path})",
        "1 entry checked, 1 damaged and set aside",
    ]
    assert run("verify").exit_code == 0


def test_what_acts_on_a_store_takes_its_url_and_nothing_of_the_cache(store, tmp_path):
    (tmp_path / "remote").mkdir()
    url = f"file://{tmp_path}/remote"
    for words, problem in (
        (("gc", url, "--max-age", "1d"), "--max-size and --max-age limit the cache: leave out the URL"),
        (("gc", "--unused-for", "1d"), "--unused-for is for a store: name its URL. For the cache: --max-age"),
        (("gc", "relu"), "'relu': expected the URL of a store, or nothing for the cache"),
        (("gc", str(tmp_path)), f"expected a URL: write file://{tmp_path}"),
        (("rm", url), "rm acts on this machine alone. In a store: opforge withdraw URL NAME, then opforge gc URL"),
        (("verify", url, "--deep"), "a store is checked as a whole: leave out names and --deep"),
        (("ls", url, "relu"), f"{url} has no relu: check the names, or name another store"),
        (("cache", "ls"), "No such command 'ls'. It is: opforge ls"),
    ):
        done = CliRunner().invoke(group, list(words))
        assert done.exit_code == 2 and problem in done.output, words
    assert (
        run("gc", url).output == "0 objects, 0 B\n" and run("verify", url).output == "0 statements checked, 0 refused\n"
    )


def test_verify_names_entries_that_it_could_not_set_aside(store, monkeypatch):
    folder = store.layout.entry(store.add())
    store.deny_access(monkeypatch, os.path.basename(folder))
    done = run("verify")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        f"damaged {os.path.basename(folder)}: it cannot be read (Permission denied) ({folder})",
        "1 entry checked, 1 damaged, 1 of them not set aside",
    ]


def test_gc_prints_what_it_removes(store, monkeypatch):
    monkeypatch.setattr(gc, "GRACE_SECONDS", 0.0)
    folder = store.layout.entry(store.add())
    dry = run("gc", "--max-size", "0", "--dry-run").output
    assert dry.startswith("would remove relu, ") and f": {folder} (the least recently used, " in dry
    assert os.path.isdir(folder)
    summary = run("gc", "--max-size", "0").output.splitlines()[1]
    assert summary.startswith("removed 1 entry, 1 pointer, 1 description, ")
    assert not os.path.exists(folder)
    assert document("gc", "--max-size", "0") == {"dry_run": False, "bytes": 0, "removed": []}


def test_gc_respects_the_limits_of_the_environment(store, monkeypatch):
    monkeypatch.setattr(gc, "GRACE_SECONDS", 0.0)
    folder = store.layout.entry(store.add())
    assert run("gc").exit_code == 0 and os.path.isdir(folder)
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", "10Q")
    assert "OPFORGE_CACHE_MAX_SIZE='10Q' cannot be used: expected a number with B" in run("gc").stderr
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", "1B")
    assert run("gc").exit_code == 0 and not os.path.exists(folder)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--max-size", "much", "'much' is not a size: expected a number with B, KiB, MB or the like, such as 2GiB"),
        ("--max-age", "3y", "'3y' is not an age: expected a number with s, min, h, d or w, such as 30d"),
    ],
)
def test_a_limit_that_does_not_parse_is_wrong_usage(option, value, text):
    done = run("gc", option, value)
    assert done.exit_code == 2 and f"Invalid value for '{option}': {text}" in done.output


def test_rm_without_confirmation_removes_nothing(store):
    store.add()
    done = run("rm", "--all")
    assert done.exit_code == 2
    assert "without a terminal, or with --json, nothing can be confirmed: expected --yes." in done.output
    assert len(store.entry_keys()) == 1
    assert run("rm", "--all", "--yes").exit_code == 0 and store.entry_keys() == set()


def test_rm_accepts_an_op_name_in_any_form(store):
    store.add("cpu_adam")
    relu = store.add("relu")
    assert run("rm", "CPUAdamBuilder").exit_code == 0
    assert store.entry_keys() == {relu}


def test_rm_keeps_pinned_entries_and_says_how_many(store):
    kept, cleared = store.add("relu"), store.add("adam")
    assert run("pin", "relu").exit_code == 0
    done = run("rm", "--all", "--yes")
    assert done.exit_code == 0 and store.entry_keys() == {kept} and cleared not in done.output.splitlines()[-1]
    assert done.output.splitlines()[-1] == "kept 1 pinned entry: to remove them, name them or use --pinned"
    assert document("rm", "--all", "--yes") == {
        "dry_run": False,
        "bytes": 0,
        "removed": [],
        "kept_pinned": 1,
        "packages": [],
        "warnings": [],
        "problems": [],
    }
    assert run("unpin", "relu").exit_code == 0
    assert "kept 1" not in run("rm", "--all", "--yes").output and store.entry_keys() == set()


@pytest.mark.parametrize("arguments", [["relu"], ["--all", "--pinned"]])
def test_rm_removes_pinned_entries_that_are_named_or_if_requested(store, arguments):
    store.add("relu")
    run("pin", "relu")
    done = run("rm", "--yes", *arguments)
    assert done.exit_code == 0 and store.entry_keys() == set() and "kept" not in done.output
    assert store.files("pins") == [], "an entry that is built again is not pinned"


def test_rm_by_a_key_removes_a_pinned_entry(store):
    kept, cleared = store.add("relu"), store.add("relu", text="int b;")
    run("pin", "relu")
    assert run("rm", cleared[:12]).exit_code == 0
    assert store.entry_keys() == {kept} and store.files("pins") == [kept]


def test_rm_of_an_unknown_op_names_the_stored_ops(store):
    store.add("relu")
    done = run("rm", "gelu")
    assert done.exit_code == 2 and "'gelu' is neither an op nor a key in the cache, which holds: relu." in done.output


def test_a_cache_path_that_is_a_file_is_refused(tmp_path, monkeypatch):
    path = text_files.write(tmp_path, "file", "")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", path)
    done = run("ls")
    assert done.exit_code == 1 and done.stdout == ""
    assert done.stderr.startswith(
        f"error: The cache folder {path} cannot be used: {path} is not a folder.\nhint: Choose"
    )
    assert document("ls")["error"] == "CacheDirError"


def test_pin_and_unpin_accept_names_and_keys(store):
    relu, adam = store.add("relu"), store.add("adam")
    done = run("pin", "relu", adam[:8])
    assert done.exit_code == 0
    assert set(done.stdout.splitlines()) == {f"pinned relu {relu[:12]}", f"pinned adam {adam[:12]}"}
    assert document("unpin", "relu") == {"unpinned": [relu]}
    removed = json.loads(run("gc", "--max-size", "0", "--json").stdout)["removed"]
    assert removed == [], "adam is pinned, and relu was published just now"
    assert run("pin").exit_code == 2


@pytest.mark.parametrize(("word", "ours"), [("export", "opforge mirror cache:"), ("import", "opforge mirror")])
def test_what_moves_entries_between_machines_is_mirror(word, ours):
    done = run(word, "ops.tar")
    assert done.exit_code == 2 and f"No such command {word!r}. It is: {ours}\n" in done.output
