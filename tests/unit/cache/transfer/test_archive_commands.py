"""`opforge cache export`, `import`, `pin` and `unpin`: what they print, and their exit codes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from support.store.fake_store import FakeStore

from opforge.cli import group


def run(*arguments):
    return CliRunner().invoke(group, ["cache", *arguments])


@pytest.fixture
def users_store(own_store, tmp_path):
    return FakeStore(own_store, tmp_path / "src")


def test_export_and_import_print_what_they_moved(users_store, tmp_path, monkeypatch):
    relu, _adam = users_store.add("relu"), users_store.add("adam")
    path = str(tmp_path / "ops.tar")
    done = run("export", path, "Relu")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"exported relu {relu[:12]}, ") and lines[1] == "1 entry exported"
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "other"))
    assert run("import", path).stdout.splitlines()[-1] == "1 entry imported"
    lines = run("import", path).stdout.splitlines()
    assert lines[0].startswith("had already relu ") and lines[-1] == "0 entries imported"
    entries = json.loads(run("import", path, "--json").stdout)["imported"]
    assert [(entry["op"], entry["result"], entry["news"]) for entry in entries] == [("relu", relu, False)]


def test_export_accepts_the_beginning_of_a_key_and_exports_everything_without_a_name(users_store, tmp_path):
    relu, _adam = users_store.add("relu"), users_store.add("adam")
    entries = json.loads(run("export", str(tmp_path / "one.tar"), relu[:6], "--json").stdout)["exported"]
    assert [entry["result"] for entry in entries] == [relu]
    assert len(json.loads(run("export", str(tmp_path / "all.tar"), "--json").stdout)["exported"]) == 2


def test_export_of_an_op_that_is_not_stored_names_those_that_are(users_store, tmp_path):
    users_store.add("relu")
    done = run("export", str(tmp_path / "ops.tar"), "gelu")
    assert done.exit_code == 2 and "'gelu' is neither an op nor a key in the cache, which holds: relu." in done.output
    assert not (tmp_path / "ops.tar").exists()


def test_import_of_a_file_that_is_no_archive_fails_with_the_reason(users_store, tmp_path):
    (tmp_path / "ops.tar").write_text("no")
    done = run("import", str(tmp_path / "ops.tar"))
    assert done.exit_code == 1 and done.stderr.startswith(f"error: The archive {tmp_path}/ops.tar cannot be imported: ")
    assert json.loads(run("import", str(tmp_path / "ops.tar"), "--json").stdout)["error"] == "ArchiveError"


def test_pin_and_unpin_accept_names_and_keys(users_store):
    relu, adam = users_store.add("relu"), users_store.add("adam")
    done = run("pin", "relu", adam[:8])
    assert done.exit_code == 0 and set(done.stdout.splitlines()) == {
        f"pinned relu {relu[:12]}",
        f"pinned adam {adam[:12]}",
    }
    assert json.loads(run("unpin", "relu", "--json").stdout) == {"unpinned": [relu]}
    collected = CliRunner().invoke(group, ["gc", "--max-size", "0", "--json"])
    removed = json.loads(collected.stdout)["removed"]
    assert removed == [], "adam is pinned, and relu was published just now"
    assert run("pin").exit_code == 2


def test_an_archive_that_cannot_be_written_is_wrong_usage(users_store, tmp_path):
    users_store.add("relu")
    done = run("export", str(tmp_path / "no" / "such" / "folder" / "x.tar"))
    assert done.exit_code == 2
    assert "x.tar cannot be written: No such file or directory. Choose another path." in done.output
