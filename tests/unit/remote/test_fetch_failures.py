"""What a look-up does with a remote that has nothing, fails, or must not be asked."""

from __future__ import annotations

import contextlib
import logging
import os

import pytest
from support import sample_ops
from support.remote import op_offers
from support.remote.nodes import reasons

import opforge
from opforge.builders import load_op
from opforge.builders.lookup import finder
from opforge.cache import current_store
from opforge.cache.records.entry import with_record_key
from opforge.errors import BuildForbiddenError, PrebuiltRequiredError, SettingError, ToolchainNotFoundError
from opforge.foundation import remembered_values
from opforge.remote import remembered_answers, take, topics
from opforge.remote.op_statements import OP
from opforge.remote.signatures import keys, signing
from opforge.remote.statements import Signed


def test_a_miss_is_remembered_and_asked_again_by_force(nodes, builder, entry, monkeypatch):
    monkeypatch.setattr(remembered_values, "RACY_NS", 0)  # the trust file has just been written
    os.rename(nodes.offers_file(entry), nodes.folder / "kept")
    assert nodes.fetch(builder)[0] is None
    os.rename(nodes.folder / "kept", nodes.offers_file(entry))
    match, rejected = nodes.fetch(builder)
    assert match is None
    assert "it is asked again after 10 minutes, or by opforge fetch" in reasons(rejected)
    later = remembered_answers.time.time() + 601
    monkeypatch.setattr(remembered_answers.time, "time", lambda: later)
    assert nodes.fetch(builder)[0].key == entry.key


@pytest.mark.parametrize("error", [PrebuiltRequiredError, BuildForbiddenError, ToolchainNotFoundError])
def test_a_load_that_would_end_in_an_error_asks_again(nodes, builder, entry, monkeypatch, error):
    """What was pushed a moment ago is there: that it was not ten minutes ago is no answer then."""
    if error is PrebuiltRequiredError:
        monkeypatch.setenv("OPFORGE_PREBUILT", "require")
    if error is ToolchainNotFoundError:
        monkeypatch.setenv("PATH", "/nowhere")
    scope = opforge.no_builds() if error is BuildForbiddenError else contextlib.nullcontext()
    os.rename(nodes.offers_file(entry), nodes.folder / "kept")
    nodes.enter("node")
    with scope, pytest.raises(error):
        builder.build()
    os.rename(nodes.folder / "kept", nodes.offers_file(entry))
    with scope:
        assert nodes.fetch(builder)[0].key == entry.key


CONTROL = "\x1b[2J\u202e"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": f"cpu:x86-64-v9{CONTROL}"}, "it is built for x86-64-v9 [2J , and this processor offers"),
        ({"machine": CONTROL, "target": "cuda:sm_80"}, "its host code is for  [2J , and this machine is"),
        ({"requires": {"torch versions": CONTROL}}, "it needs torch  [2J , and torch"),
        ({"abi": "torch"}, "it does not state the torch that it was built for, and torch"),
        ({"abi": "torch", "requires": {"torch": CONTROL}}, "it was built for torch  [2J , and torch"),
    ],
)
def test_a_record_of_any_fields_is_refused_with_a_reason_that_controls_no_terminal(
    nodes, builder, entry, changes, reason
):
    (item,) = topics.read_frame(nodes.offers_file(entry).read_bytes())
    offer = OP.parse(item.data)
    record = with_record_key({**offer.facts["record"], **changes})
    data = op_offers.statement(record, record["description"], offer.tree).data()
    nodes.offers_file(entry).write_bytes(topics.frame([Signed(data, (signing.sign(data, keys.read("ci")),))]))
    match, rejected = nodes.fetch(builder)
    assert match is None and reason in reasons(rejected)
    assert all(one.reason.isprintable() for one in rejected)


def test_a_remote_that_fails_is_left_alone_and_costs_one_warning(nodes, builder, entry, monkeypatch, caplog):
    monkeypatch.setenv("OPFORGE_REMOTES", f"file:///no/such/folder {nodes.url}")
    with caplog.at_level(logging.WARNING, "opforge"):
        assert nodes.fetch(builder)[0].key == entry.key
        nodes.offers_file(entry).unlink()
        match, rejected = nodes.fetch(sample_ops.plain_op(nodes.folder / "second", "second")())
    assert match is None
    assert "is left alone for a minute" in reasons(rejected)
    assert len([record for record in caplog.records if "no/such/folder" in record.getMessage()]) == 1


def test_the_build_goes_on_if_no_remote_can_be_used(nodes, builder, monkeypatch):
    monkeypatch.setenv("OPFORGE_REMOTES", "file:///no/such/folder")
    nodes.enter("node")
    assert builder.build().origin == "built"


def test_garbage_in_place_of_offers_is_one_warning(nodes, builder, entry, caplog):
    nodes.offers_file(entry).write_bytes(b"<html>it works</html>\n")
    with caplog.at_level(logging.WARNING, "opforge"):
        match, rejected = nodes.fetch(builder)
    assert match is None
    assert "it is not a file of statements" in reasons(rejected)
    assert len(caplog.records) == 1


def test_offline_uses_folders_alone(nodes, builder, entry, monkeypatch):
    monkeypatch.setenv("OPFORGE_OFFLINE", "1")
    monkeypatch.setenv("OPFORGE_REMOTES", f"http://127.0.0.1:9/ops {nodes.url}")
    match, rejected = nodes.fetch(builder)
    assert match.origin == nodes.url
    assert "http://127.0.0.1:9/ops: OPFORGE_OFFLINE=1 forbids the network" in reasons(rejected)


def test_require_names_what_remotes_said(nodes, builder, monkeypatch):
    monkeypatch.setenv("OPFORGE_PREBUILT", "require")
    nodes.enter("node")
    with pytest.raises(PrebuiltRequiredError, match="it offers nothing for this description"):
        load_op.stored_entry(finder.Finder(builder.spec(), current_store.current_store(), asks=True))


def test_a_malformed_setting_is_an_error(nodes, builder, monkeypatch):
    monkeypatch.setenv("OPFORGE_REMOTES", "/shared/ops")
    with pytest.raises(SettingError, match="expected a URL"):
        nodes.fetch(builder)


def test_a_read_only_machine_fetches_nothing_and_says_so(nodes, builder, entry, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "file" / "store"))
    monkeypatch.setenv("OPFORGE_PREBUILT", "require")
    current_store.reset()
    with pytest.raises(Exception, match=r"(?s)nothing can be fetched into it|cannot be used"):
        load_op.stored_entry(finder.Finder(builder.spec(), current_store.current_store(), asks=True))


class TestWhatCommandsShow:
    """`explain`, `report` and `build-ops --dry-run` say what a remote would give, or why it gives nothing."""

    def shown(self, nodes, *arguments):
        import json

        from support.child_processes import run_command

        variables = {"OPFORGE_CACHE_DIR": str(nodes.folder / "node"), "PYTHONSAFEPATH": None}
        done = run_command(*arguments, "--json", **variables)
        return json.loads(done.stdout)

    @pytest.fixture
    def ops(self, tmp_path, monkeypatch):
        """A module with the op, which the commands can import."""
        folder = tmp_path / "op"
        (folder / "my_ops.py").write_text(
            "from opforge import OpBuilder\n"
            "class PlainBuilder(OpBuilder):\n    name, sources, abi = 'plain', ['plain.cpp'], 'c'\n"
        )
        monkeypatch.chdir(folder)
        return "my_ops:PlainBuilder"

    def test_an_offer_that_would_be_fetched(self, nodes, builder, ops, entry):
        nodes.push(entry)
        explained = self.shown(nodes, "cache", "explain", ops)
        assert explained["remote"].startswith(f"{nodes.url}: {entry.key} for cpu:")
        assert explained["remote"].endswith("signed by ci")
        (op,) = self.shown(nodes, "build-ops", ops, "--dry-run")["ops"]
        assert (op["state"], op["remote"]) == ("would be fetched", explained["remote"])
        (op,) = self.shown(nodes, "fetch", ops)["ops"]
        assert (op["state"], op["origin"]) == ("fetched", nodes.url)
        (op,) = self.shown(nodes, "fetch", ops)["ops"]
        assert op["state"] == "present"
        assert self.shown(nodes, "cache", "explain", ops)["hit"]

    def test_the_reason_of_an_offer_that_does_not_fit(self, nodes, builder, ops, entry):
        tree = OP.parse(topics.read_frame(nodes.offers_file(entry).read_bytes())[0].data).tree
        record = with_record_key({**entry.record, "floors": {"GLIBC": "99.0"}})
        nodes.put_offer(entry, op_offers.statement(record, entry.record["description"], tree).data())
        rejected = self.shown(nodes, "cache", "explain", ops)["rejected"]
        assert any("it needs glibc 99.0" in each["reason"] for each in rejected)
        (op,) = self.shown(nodes, "build-ops", ops, "--dry-run")["ops"]
        assert op["state"] == "would be built"
        assert any("it needs glibc 99.0" in each["reason"] for each in op["rejected"])
        (op,) = self.shown(nodes, "fetch", ops)["ops"]
        assert op["state"] == "missing"
        assert any("it needs glibc 99.0" in reason for reason in op["reasons"])


def test_an_op_that_a_remote_has_is_compatible_without_a_compiler(nodes, builder, entry, monkeypatch):
    nodes.enter("node")
    monkeypatch.setenv("PATH", "/nowhere")
    assert builder.is_compatible()
    nodes.offers_file(entry).unlink()
    assert "No C++ compiler" in str(builder.is_compatible())


def test_the_report_names_the_remotes_and_what_failed(nodes, builder, monkeypatch):
    from opforge.report import machine

    nodes.enter("node")
    monkeypatch.setenv("OPFORGE_REMOTES", f"file:///no/such/folder {nodes.url}?push=1 http://127.0.0.1:9/ops")
    monkeypatch.setenv("OPFORGE_OFFLINE", "1")
    nodes.fetch(builder)
    failed, folder, server = machine.remotes()
    assert "left alone for a minute" in failed["problem"]
    assert folder == {"url": nodes.url, "publishes": True, "problem": ""}
    assert server["problem"] == "OPFORGE_OFFLINE=1 forbids the network"
    monkeypatch.setenv("OPFORGE_REMOTES", "nonsense")
    assert "OPFORGE_REMOTES='nonsense' cannot be used" in machine.remotes()[0]["problem"]


def test_a_miss_is_remembered_for_what_was_asked_alone(nodes, builder, entry):
    """`build-ops` refuses an entry for a lower CPU level, and the next `load` takes it."""
    level, lower = str(builder.target), "cpu:x86-64-v2"
    if level == lower:
        pytest.skip("this machine has the lowest level")
    tree = OP.parse(topics.read_frame(nodes.offers_file(entry).read_bytes())[0].data).tree
    record = with_record_key({**entry.record, "target": lower})
    nodes.put_offer(entry, op_offers.statement(record, entry.record["description"], tree).data())
    store = nodes.enter("node")
    exact = finder.Finder(builder.spec(), store, exact=True, asks=True)
    any_level = finder.Finder(builder.spec(), store, asks=True)
    assert load_op.stored_entry(exact) is None
    assert f"it is built for {lower}, not for {level}" in reasons(exact.rejected)
    found = load_op.stored_entry(any_level)
    assert "ago" not in reasons(any_level.rejected)
    assert found.record == record


@pytest.mark.parametrize(("seconds", "tried"), [(-1.0, 1), (60.0, 3)])
def test_after_a_minute_no_further_offer_is_tried(nodes, builder, entry, monkeypatch, seconds, tried):
    """Each library may take its time: a server that sends all of them slowly would hold a load for ever."""
    names, real = [], take.judged
    nodes.blob_file(entry).unlink()
    monkeypatch.setattr(take, "MAX_SECONDS", seconds)
    monkeypatch.setattr(take, "judged", lambda *arguments: (real(*arguments)[0] * 3, ()))
    place = take._place
    monkeypatch.setattr(take, "_place", lambda *arguments: names.append(arguments[-1]) or place(*arguments))
    match, rejected = nodes.fetch(builder)
    assert match is None and len(names) == tried
    late = "fetching failed: no offer was usable within -1 s"
    assert (late in reasons(rejected)) == (tried == 1), reasons(rejected)
