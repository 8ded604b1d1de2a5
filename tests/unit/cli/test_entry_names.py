"""How commands name entries: by op, by the beginning of a key, by path."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner
from support.store.fake_store import FakeStore

from opforge.cache.maintenance.listing import StoredEntry
from opforge.cli import group
from opforge.cli.cache import entries


@pytest.fixture
def store(own_store, tmp_path):
    return FakeStore(own_store, tmp_path / "src")


def run(*arguments):
    words = arguments if arguments[0] in ("ls", "rm") else ("cache", *arguments)
    return CliRunner().invoke(group, list(words))


def stored(key, op, problem=""):
    return StoredEntry(key, op, "c", "cpu", "", 1, 0.0, 0.0, 1.0, f"/store/{key}/{op}.so", problem)


ADAM, OTHER_ADAM, ADD = stored("3f9c01", "adam"), stored("3f9d02", "adam"), stored("ad4441", "add")
ALL = [ADAM, OTHER_ADAM, ADD]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("adam", [ADAM, OTHER_ADAM]),
        ("Adam_Builder", [ADAM, OTHER_ADAM]),
        ("3f9c", [ADAM]),
        ("a", [ADD]),
        ("add", [ADD]),
        ("/store/3f9d02/adam.so", [OTHER_ADAM]),
        ("/store/3f9d02", [OTHER_ADAM]),
    ],
)
def test_a_name_is_an_op_or_a_path_or_begins_one_key(name, expected):
    assert entries.named_entries(ALL, name) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("3f9", "'3f9' begins 2 keys: 3f9c01 (adam), 3f9d02 (adam). Expected enough letters for one of them."),
        ("adm", "'adm' is neither an op nor a key in the cache, which holds: adam, add. Did you mean adam or add?"),
        ("3f9c02", "which holds: adam, add. Did you mean 3f9d02 (adam) or 3f9c01 (adam)?"),
        ("", "'' is neither an op nor a key in the cache"),
        ("/nowhere/x.so", "'/nowhere/x.so' is neither an op nor a key in the cache, which holds: adam, add."),
    ],
)
def test_a_name_of_several_keys_or_of_nothing_is_an_error_with_near_names(name, message):
    with pytest.raises(entries.click.UsageError) as raised:
        entries.named_entries(ALL, name)
    assert message in raised.value.message


def test_keys_that_begin_alike_are_shown_up_to_where_they_differ():
    alike = [stored("0123456789abcdef" + end, "relu") for end in ("a1", "b2")]
    with pytest.raises(entries.click.UsageError, match=r"0123456789abcdefa .*0123456789abcdefb "):
        entries.named_entries(alike, "01")


def test_an_ambiguous_beginning_changes_nothing(store):
    keys = [store.add("relu", text=f"int a{number};") for number in range(17)]  # two begin with one digit
    first = next(key[0] for key in keys if sum(other[0] == key[0] for other in keys) > 1)
    for command in ("rm", "pin", "unpin", "explain"):
        done = run(command, first)
        assert done.exit_code == 2 and f"'{first}' begins " in done.output
    assert len(store.entry_keys()) == 17 and not store.files("pins")


def test_rm_removes_what_is_named_and_nothing_else(store):
    kept, named, of_op = store.add("relu"), store.add("adam"), store.add("gelu")
    assert run("pin", named[:9]).output == f"pinned adam {named[:12]}\n"
    assert "would remove adam" in run("rm", named[:9], "--dry-run").output and len(store.entry_keys()) == 3
    assert "removed 2 entries" in run("rm", named[:9], "gelu").output
    assert store.entry_keys() == {kept} and of_op not in store.entry_keys()
    assert run("rm").exit_code == 2


def test_rm_removes_an_entry_whose_record_cannot_be_read(store):
    key = store.add("relu")
    record = os.path.join(store.layout.entry(key), "record.json")
    os.chmod(os.path.dirname(record), 0o700), os.chmod(record, 0o600)
    with open(record, "w") as file:
        file.write("{")
    assert "(its record cannot be read)" in run("ls").output
    assert run("rm", key[:8]).exit_code == 0 and not store.entry_keys()


def test_a_path_of_ls_is_taken(store):
    key = store.add("relu")
    (entry,) = json.loads(run("ls", "--json").stdout)["ops"]
    assert run("pin", entry["path"]).output == f"pinned relu {key[:12]}\n"
