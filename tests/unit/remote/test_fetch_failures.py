"""What a look-up does with a remote that has nothing, fails, or must not be asked."""

from __future__ import annotations

import logging
import os

import pytest
from support import sample_ops
from support.remote.nodes import reasons

from opforge.builders.lookup import finder
from opforge.cache import current
from opforge.errors import PrebuiltRequiredError, SettingError
from opforge.remote import answers


def test_a_miss_is_remembered_and_asked_again_by_force(nodes, builder, entry, monkeypatch):
    os.rename(nodes.offers_file(entry), nodes.folder / "kept")
    assert nodes.fetch(builder)[0] is None
    os.rename(nodes.folder / "kept", nodes.offers_file(entry))
    match, rejected = nodes.fetch(builder)
    assert match is None
    assert "it is asked again after 10 minutes, or by opforge fetch" in reasons(rejected)
    later = answers.time.time() + 601
    monkeypatch.setattr(answers.time, "time", lambda: later)
    assert nodes.fetch(builder)[0].key == entry.key


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
    assert "it is no file of offers" in reasons(rejected)
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
        finder.stored_entry(builder.spec(), None, False, False, [])


def test_a_malformed_setting_is_an_error(nodes, builder, monkeypatch):
    monkeypatch.setenv("OPFORGE_REMOTES", "/shared/ops")
    with pytest.raises(SettingError, match="URLs separated by spaces"):
        nodes.fetch(builder)


def test_a_read_only_machine_fetches_nothing_and_says_so(nodes, builder, entry, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "file" / "store"))
    monkeypatch.setenv("OPFORGE_PREBUILT", "require")
    current.reset()
    with pytest.raises(Exception, match=r"(?s)nothing can be fetched into it|cannot be used"):
        finder.stored_entry(builder.spec(), None, False, False, [])
