"""A mistake in our own code is an error, and never passes for a damaged file or for a store of others."""

from __future__ import annotations

from typing import Any

import pytest

from opforge.remote import withdrawal_lists
from opforge.remote.remembered_answers import note_withdrawn
from opforge.remote.remembered_answers import withdrawn as remembered
from opforge.remote.remotes import parse
from opforge.remote.signatures import signing, trust_file

SECRET = signing.new_secret("ci")


def _signed(data: bytes) -> Any:
    return signing.sign(data, SECRET)


def _mistake(*_arguments: Any) -> Any:
    raise AttributeError("a mistake of ours")


def test_a_mistake_in_reading_a_list_of_withdrawals_is_no_list_that_was_forgotten(monkeypatch):
    trusted = trust_file.TrustedKey(signing.Named("ci", bytes(32)), ("op:*",))
    remote = parse("https://example.com")
    note_withdrawn(
        remote,
        trusted,
        withdrawal_lists.file_of(withdrawal_lists.Withdrawals("ci", 1700000000.0, id="0" * 16), _signed),
    )
    found = remembered(remote, trusted)
    assert found is not None and found.listed is not None and found.listed.key == "ci"
    monkeypatch.setattr(withdrawal_lists, "parse", _mistake)
    with pytest.raises(AttributeError, match="a mistake of ours"):
        remembered(remote, trusted)
