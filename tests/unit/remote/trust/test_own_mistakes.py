"""A mistake in our own code is an error, and never passes for a damaged file or for a store of others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opforge.remote import withdrawals
from opforge.remote.answers import Noted, note_withdrawn
from opforge.remote.answers import withdrawn as remembered
from opforge.remote.remotes import parse
from opforge.remote.signatures import signing, trust
from opforge.remote.stores import open_store
from opforge.remote.tuf import roots


def _mistake(*_arguments: Any) -> Any:
    raise AttributeError("a mistake of ours")


def test_a_mistake_in_reading_a_root_does_not_make_a_store_one_without_a_root(tmp_path, monkeypatch):
    root = roots.Root(str(tmp_path), b"", "0" * 32, 1)
    monkeypatch.setattr(roots, "known", lambda: [root])
    (tmp_path / "v1/tuf").mkdir(parents=True)
    (tmp_path / "v1/tuf/1.root.json").write_text("{}")
    store = open_store(f"file://{tmp_path}")
    assert roots.of_store(store) is None, "it is no root metadata"
    monkeypatch.setattr(roots, "_keys_of", _mistake)
    with pytest.raises(AttributeError, match="a mistake of ours"):
        roots.of_store(store)


def test_root_metadata_whose_role_names_no_key_is_none():
    signed = {"_type": "root", "version": 1, "keys": {}, "roles": {"root": {"keyids": ["ab"]}}}
    with pytest.raises(ValueError, match="'keys' lacks 'ab', which the role root names"):
        roots._keys_of(json.dumps({"signed": signed}).encode())


def test_a_mistake_in_reading_a_list_of_withdrawals_is_no_list_that_was_forgotten(monkeypatch):
    trusted = trust.TrustedKey(signing.Named("ci", bytes(32)), ("op:*",))
    remote = parse("https://example.com")
    note_withdrawn(remote, trusted, Noted(withdrawals.Withdrawals("ci", 1700000000.0), "store"))
    found = remembered(remote, trusted)
    assert found is not None and found.listed is not None and found.listed.key == "ci"
    monkeypatch.setattr(withdrawals, "parse", _mistake)
    with pytest.raises(AttributeError, match="a mistake of ours"):
        remembered(remote, trusted)
