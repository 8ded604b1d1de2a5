"""A remote is blamed only for its own answers: what fails on this machine leaves no remote alone."""

from __future__ import annotations

import inspect
import logging
import os

import pytest
from support.jits import pages

from opforge import errors
from opforge.builders import load_op
from opforge.builders.lookup import finder
from opforge.cache.current_store import current_store
from opforge.errors import StoreError
from opforge.remote import background, remembered_answers, remotes
from opforge.remote.stores import open_store


def every_error():
    """Returns an error of each class of opforge's, without calling its __init__, and of those of the system."""
    classes = [one for _name, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, Exception)]
    assert len(classes) > 20
    made = [one.__new__(one) for one in classes if not issubclass(one, StoreError)]
    return [*made, OSError(28, "No space left on device"), ValueError("x"), KeyError("x")]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_an_error_of_this_machine_is_no_remotes(nodes, error):
    remote = remotes.parse(nodes.url)
    assert not remembered_answers.note_failure(remote, error)
    assert not remembered_answers.failure(remote)


def test_what_a_store_answers_is_its_own(nodes):
    remote = remotes.parse(nodes.url)
    assert remembered_answers.note_failure(remote, StoreError(nodes.url, "reading x", "it is cut short", "Remove it"))
    assert "left alone for a minute: reading x failed: it is cut short" in remembered_answers.failure(remote)


@pytest.mark.parametrize("url", ["https://cache.example/ops?tokn_env=X", "ftp://cache.example/ops", "s3://"])
def test_a_url_that_cannot_be_opened_is_a_mistake_in_the_settings(nodes, url):
    with pytest.raises(StoreError) as caught:
        open_store(url)
    assert not remembered_answers.note_failure(remotes.Remote(url), caught.value)


def test_a_missing_signing_key_is_not_the_remotes_failure(nodes, plain_entry, caplog):
    os.unlink(nodes.folder / "config" / "opforge" / "keys" / "ci.secret")
    nodes.enter("a")
    remote = remotes.parse(f"{nodes.url}?push=1")
    with caplog.at_level(logging.WARNING, "opforge"):
        background.push([remote], "plain", plain_entry, plain_entry.record["description"])
        background.wait(30)
    (message,) = caplog.messages
    assert message.startswith(f"plain: it was not published to {nodes.url}: No signing key is configured")
    assert not remembered_answers.failure(remote)


def test_ops_are_fetched_as_soon_as_the_trust_file_is_corrected(nodes, builder, entry, monkeypatch):
    """Also if what found it damaged asked for something else than an op."""
    nodes.enter("node")
    content = nodes.trust_file().read_bytes()
    nodes.trust_file().write_bytes(b"{")
    assert pages.entries().get("key") is None
    nodes.trust_file().write_bytes(content)
    assert load_op.stored_entry(finder.Finder(builder.spec(), current_store(), asks=True)).key == entry.key
