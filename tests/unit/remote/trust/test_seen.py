"""What was seen of a signer in a store is not forgotten: whoever controls the store cannot put an older list back."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor

import pytest
from support.remote.nodes import reasons
from support.remote.withdrawing import withdraw

from opforge.foundation import environment, remembered_values, remembered_values_writer
from opforge.foundation.files import read_file
from opforge.remote import remembered_answers, withdrawal_lists
from opforge.remote.signatures import seen, signing, trust_file
from opforge.remote.signatures.seen import Seen

URL = "https://cache.example/ops"


@pytest.fixture
def older_list(nodes, builder, entry):
    """Returns what puts a list back that withdraws nothing, after this node has seen one that withdraws the entry."""
    path = nodes.folder / "remote" / "v1" / "withdrawals" / "ci.json"
    older = path.read_bytes()
    withdraw(nodes.store, entry.key)
    match, rejected = nodes.fetch(builder)
    assert match is None and "the key ci has withdrawn it" in reasons(rejected)
    return lambda: path.write_bytes(older)


def is_refused(nodes, builder):
    match, rejected = nodes.fetch(builder)
    return match is None and "the list of withdrawals of ci is not used: it is the one of " in reasons(rejected)


class TestNothingMakesALoadForget:
    def test_a_clock_that_is_ten_minutes_behind(self, nodes, builder, older_list, monkeypatch):
        older_list()
        earlier = time.time() - 600
        with monkeypatch.context() as patch:
            patch.setattr(remembered_answers.time, "time", lambda: earlier)
            assert is_refused(nodes, builder)

    def test_thousands_of_other_look_ups(self, nodes, builder, older_list, monkeypatch):
        older_list()
        monkeypatch.setattr(remembered_values_writer, "MAX_LOOKUPS", 64)
        for number in range(200):
            remembered_values_writer.remember(f"remote-miss-{number:024x}", remembered_values.FlatStamps(), {})
        assert is_refused(nodes, builder)

    def test_caches_that_are_removed(self, nodes, builder, older_list):
        older_list()
        for folder in ("node", "node-caches"):
            shutil.rmtree(nodes.folder / folder)
        assert is_refused(nodes, builder)

    def test_a_list_that_is_gone(self, nodes, builder, older_list):
        (nodes.folder / "remote" / "v1" / "withdrawals" / "ci.json").unlink()
        shutil.rmtree(nodes.folder / "node-caches")
        match, rejected = nodes.fetch(builder)
        assert match is None
        assert "the list of withdrawals of ci is not used: it is gone, and the one of " in reasons(rejected)

    def test_a_damaged_state_and_a_list_that_is_gone(self, nodes, builder, older_list, caplog):
        """What was withdrawn can be hidden then: that is said, and refused if the trust file requires it."""
        paths = [os.path.join(seen.folder(), name) for name in os.listdir(seen.folder()) if name.endswith(".json")]
        (path,) = [path for path in paths if json.loads(read_file(path, 9999))["store"] == nodes.url]
        with open(path, "w") as file:
            file.write("{}")
        (signer,) = trust_file.read().keys
        seen.reset()
        with caplog.at_level(logging.WARNING, "opforge"):
            assert seen.problem_of_none(nodes.url, signer.key) == ""
        (record,) = caplog.records
        assert record.getMessage().startswith(
            f"The record of seen lists was damaged and is created again: {path} is damaged"
        )
        refused = seen.problem_of_none(nodes.url, signer.key, is_required=True)
        assert f"{path} is damaged: 'digest' is missing), and the trust file requires that: remove that file" in refused

    def test_the_holder_of_the_key_puts_it_right(self, nodes, builder, entry, older_list):
        older_list()
        shutil.rmtree(nodes.folder / "node-caches")
        assert is_refused(nodes, builder)
        withdraw(nodes.store, renew_after=0, restore=True)
        shutil.rmtree(nodes.folder / "node-caches")
        match, rejected = nodes.fetch(builder)
        assert match is None and "the key ci has withdrawn it" in reasons(rejected)


def test_two_lists_of_one_second_have_two_numbers(nodes, entry, monkeypatch):
    now = time.time()
    monkeypatch.setattr(withdrawal_lists.time, "time", lambda: now)
    first = withdraw(nodes.store, "0" * 32 + "-" + "0" * 16)
    second = withdraw(nodes.store, "1" * 32 + "-" + "1" * 16)
    assert int(second.date) == int(first.date) + 1


class TestWhereItCannotBeWritten:
    @pytest.fixture(autouse=True)
    def no_state(self, nodes, monkeypatch):
        (nodes.folder / "file").write_text("")
        monkeypatch.setenv("XDG_STATE_HOME", str(nodes.folder / "file"))
        seen.reset()

    def test_a_load_warns_once_and_goes_on(self, nodes, builder, entry, caplog):
        with caplog.at_level(logging.WARNING, "opforge"):
            for node in ("first", "second"):
                assert nodes.fetch(builder, node)[0].key == entry.key
        (record,) = caplog.records
        problem = f"{nodes.folder}/file is not a folder"
        assert record.getMessage() == (
            f"The record of seen lists cannot be kept in {nodes.folder}/file/opforge/seen ({problem}): a"
            " revocation may be hidden from this machine later. Set XDG_STATE_HOME to a folder of your own that stays."
        )

    def test_a_policy_that_requires_it_refuses(self, nodes, builder, entry):
        trust_file.write(trust_file.read()._replace(requires_state=True))
        match, rejected = nodes.fetch(builder)
        assert match is None
        reason = f"{nodes.folder}/file/opforge/seen ({nodes.folder}/file is not a folder)"
        expected = f"the record of its signer's lists cannot be kept in {reason}, and the trust file requires that: set"
        expected += " XDG_STATE_HOME to a folder of your own that stays"
        assert expected in reasons(rejected)


def test_a_policy_that_requires_it_changes_nothing_where_it_can_be_kept(nodes, builder, entry):
    trust_file.write(trust_file.read()._replace(requires_state=True))
    assert trust_file.read().requires_state
    assert nodes.fetch(builder)[0].key == entry.key


@pytest.fixture
def key():
    return signing.public_of(signing.new_secret("ci"))


class TestState:
    def test_it_only_moves_forward(self, key):
        assert seen.problem(URL, key, Seen(5, "a")) == ""
        assert seen.problem(URL, key, Seen(5, "a")) == ""
        assert seen.problem(URL, key, Seen(4, "b")) == "it is number 4, and number 5 was seen before"
        assert seen.problem(URL, key, Seen(5, "b")) == "it is not the number 5 that was seen before"
        assert seen.problem(URL, key, Seen(9, "c")) == ""
        assert seen.newest(URL, key) == Seen(9, "c")

    def test_each_store_and_each_signer_has_its_own(self, key):
        assert seen.problem(URL, key, Seen(5, "a")) == ""
        assert seen.problem(f"{URL}2", key, Seen(4, "b")) == ""
        assert seen.problem(URL, signing.public_of(signing.new_secret("ci")), Seen(3, "c")) == ""

    @pytest.mark.parametrize("url", ["HTTPS://Cache.Example:443/ops/", "https://cache.example/x/../ops"])
    def test_another_spelling_of_a_store_is_the_same_store(self, key, url):
        assert seen.problem(URL, key, Seen(5, "a")) == ""
        assert seen.problem(url, key, Seen(4, "b"))

    def test_it_is_bounded_by_the_keys_and_stores(self, key):
        for number in range(1, 101):
            assert seen.problem(URL, key, Seen(number, str(number))) == ""
        files = [name for name in os.listdir(seen.folder()) if name.endswith(".json")]
        assert len(files) == 1

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ("", "it is not valid JSON ("),
            ("[]", "it is a list of 0 items: expected an object"),
            ('{"number": "5"}', "'digest' is missing"),
            (
                '{"format": 1, "store": "", "signer": "", "number": -1, "digest": ""}',
                "'number' is -1: expected a whole number",
            ),
            ("{" * 5000, "it is no"),
        ],
    )
    def test_a_damaged_one_is_reported_and_made_anew(self, key, content, reason, caplog):
        seen.reset()
        assert seen.problem(URL, key, Seen(5, "a")) == ""
        (path,) = [os.path.join(seen.folder(), name) for name in os.listdir(seen.folder()) if name.endswith(".json")]
        with open(path, "w") as file:
            file.write(content)
        problem = seen.problem(URL, key, Seen(6, "b"), is_required=True)
        assert f"cannot be kept in {seen.folder()} ({path} is damaged: {reason}" in problem
        assert problem.endswith(
            "), and the trust file requires that: remove that file, if nobody else can have changed it, and compare the"
            " list of withdrawals with its signer's"
        )
        with caplog.at_level(logging.WARNING, "opforge"):
            assert seen.problem(URL, key, Seen(6, "b")) == ""
        (record,) = caplog.records
        text = record.getMessage()
        assert text.startswith(
            f"The record of seen lists was damaged and is created again: {path} is damaged: {reason}"
        )
        assert text.endswith(
            ": a revocation may be hidden from this machine. Compare the list of withdrawals with its signer's."
        )
        assert seen.newest(URL, key) == Seen(6, "b")

    def test_one_that_cannot_be_read_now_is_not_replaced_by_an_older_one(self, key, monkeypatch):
        """As with too many open files, or on NFS after a change of the server."""
        assert seen.problem(URL, key, Seen(5, "a")) == ""

        def stale(*_arguments):
            raise OSError(errno.ESTALE, "Stale file handle")

        with monkeypatch.context() as patch:
            patch.setattr(seen.schema, "read", stale)
            assert "Stale file handle" in seen.problem(URL, key, Seen(4, "b"), is_required=True)
            assert seen.problem(URL, key, Seen(4, "b")) == "", "there is a warning"
        assert seen.newest(URL, key) == Seen(5, "a") and seen.problem(URL, key, Seen(4, "b"))

    def test_a_folder_that_others_can_write_is_not_used(self, key, monkeypatch, tmp_path):
        assert seen.problem(URL, key, Seen(5, "a")) == ""
        os.chmod(seen.folder(), 0o777)
        assert "can be written by everybody" in seen.problem(URL, key, Seen(6, "b"), is_required=True)

    def test_what_it_holds_can_be_read_by_people(self, key):
        seen.problem("https://cache.example/ops?token_env=SECRET", key, Seen(5, "a"))
        (path,) = [os.path.join(seen.folder(), name) for name in os.listdir(seen.folder()) if name.endswith(".json")]
        with open(path) as file:
            assert json.load(file) == {
                "format": 1,
                "store": "https://cache.example/ops",
                "signer": str(key),
                "number": 5,
                "digest": "a",
            }
        assert path.startswith(environment.state_dir())

    def test_of_processes_at_the_same_time_the_newest_stays(self, key):
        with ProcessPoolExecutor(3) as processes:
            list(processes.map(_advance, [(str(key), number) for number in range(1, 25)]))
        assert seen.newest(URL, key).number == 24


def _advance(work):
    text, number = work
    seen.problem(URL, signing.parse(text, signing.PUBLIC_BYTES), Seen(number, str(number)))
