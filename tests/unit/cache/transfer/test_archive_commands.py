"""`opforge cache export`, `import`, `pin` and `unpin`: what they say and end with."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from support.store.fake_store import MadeUpStore

from opforge.cli import group


def run(*arguments):
    return CliRunner().invoke(group, ["cache", *arguments])


@pytest.fixture
def mine(own_store, tmp_path):
    return MadeUpStore(own_store, tmp_path / "src")


def test_export_and_import_say_what_they_moved(mine, tmp_path, monkeypatch):
    relu, _adam = mine.add("relu"), mine.add("adam")
    path = str(tmp_path / "ops.tar")
    said = run("export", path, "Relu")
    assert said.exit_code == 0
    lines = said.stdout.splitlines()
    assert lines[0].startswith(f"exported relu {relu[:12]}, ") and lines[1] == "1 entry exported"
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "other"))
    assert run("import", path).stdout.splitlines()[-1] == "1 entry imported"
    said = run("import", path).stdout.splitlines()
    assert said[0].startswith("had already relu ") and said[-1] == "0 entries imported"
    told = json.loads(run("import", path, "--json").stdout)["imported"]
    assert [(one["op"], one["result"], one["news"]) for one in told] == [("relu", relu, False)]


def test_export_takes_the_beginning_of_a_key_and_everything_without_a_name(mine, tmp_path):
    relu, _adam = mine.add("relu"), mine.add("adam")
    told = json.loads(run("export", str(tmp_path / "one.tar"), relu[:6], "--json").stdout)["exported"]
    assert [one["result"] for one in told] == [relu]
    assert len(json.loads(run("export", str(tmp_path / "all.tar"), "--json").stdout)["exported"]) == 2


def test_export_of_an_op_that_is_not_stored_names_those_that_are(mine, tmp_path):
    mine.add("relu")
    said = run("export", str(tmp_path / "ops.tar"), "gelu")
    assert said.exit_code == 2 and "'gelu' is neither an op nor a key in the cache, which holds: relu." in said.output
    assert not (tmp_path / "ops.tar").exists()


def test_import_of_what_is_no_archive_ends_with_its_reason(mine, tmp_path):
    (tmp_path / "ops.tar").write_text("no")
    said = run("import", str(tmp_path / "ops.tar"))
    assert said.exit_code == 1 and said.stderr.startswith(f"error: The archive {tmp_path}/ops.tar was refused: ")
    assert json.loads(run("import", str(tmp_path / "ops.tar"), "--json").stdout)["error"] == "ArchiveError"


def test_pin_and_unpin_take_names_and_keys(mine):
    relu, adam = mine.add("relu"), mine.add("adam")
    said = run("pin", "relu", adam[:8])
    assert said.exit_code == 0 and set(said.stdout.splitlines()) == {
        f"pinned relu {relu[:12]}",
        f"pinned adam {adam[:12]}",
    }
    assert json.loads(run("unpin", "relu", "--json").stdout) == {"unpinned": [relu]}
    assert json.loads(run("gc", "--max-size", "0", "--json").stdout)["removed"] == [], "both are young"
    assert run("pin").exit_code == 2


def test_an_archive_that_cannot_be_written_is_a_sentence(made):
    from click.testing import CliRunner

    from opforge.cli.cache.transfer import export_command

    made.add("relu")
    done = CliRunner().invoke(export_command, [str(made.layout.root) + "/no/such/dir/x.tar"])
    assert done.exit_code == 2
    assert "x.tar cannot be written: No such file or directory. Choose another path." in done.output
