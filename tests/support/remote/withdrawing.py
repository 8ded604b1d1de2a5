"""Withdraws ops and packages, and names releases, as the holder of a key does."""

from __future__ import annotations

from typing import Any

from opforge.remote import withdrawal_lists
from opforge.remote.signatures import keys
from opforge.remote.withdrawal_lists import CHOOSING, LOADING, NOTHING, Withdrawal, Withdrawals


def withdraw(store: Any, *entries: str, reason: str = "", key: str = "ci", **options: Any) -> Withdrawals:
    """Withdraws entries, so that they are not loaded any more; without one renews the list of the key."""
    said = {f"op:{entry}": Withdrawal(LOADING, reason) for entry in entries}
    return withdrawal_lists.publish(store, keys.signer(key), key, said, **options)


def withdraw_release(store: Any, release: str, reason: str = "wrong", stops: str = CHOOSING, key: str = "ci") -> None:
    """Withdraws a release, such as acme/relu@2.3."""
    said = {f"package:{release}": Withdrawal(stops, reason)}
    withdrawal_lists.publish(store, keys.signer(key), key, said, renew_after=0.0)


def name_release(store: Any, release: str, digest: str, key: str = "ci") -> None:
    """Names a statement as a release, such as acme/relu@2.3, in a key's list: also where that named another one."""
    name, _at, label = release.partition("@")
    before = withdrawal_lists.Unverified(store).of(key)
    labels = {**before.released.get(f"package:{name}", {}), label: digest}
    released = {**before.released, f"package:{name}": labels}
    file = withdrawal_lists.file_of(before._replace(date=before.date + 1, released=released), keys.signer(key))
    stored = store.get(withdrawal_lists.name_of(key), withdrawal_lists.MAX_BYTES)
    assert store.put_if_unchanged(withdrawal_lists.name_of(key), file, stored.version)


def take_back(store: Any, release: str) -> None:
    """Takes the withdrawal of a release back."""
    withdraw_release(store, release, "", NOTHING)


def entries_of(listed: Withdrawals | None) -> list[str]:
    """Returns the entries that a list withdraws."""
    said = listed.withdrawn if listed else {}
    return [name.removeprefix("op:") for name, one in said.items() if one.stops != NOTHING]
