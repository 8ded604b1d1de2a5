"""Withdraws ops and packages, as the holder of a key does."""

from __future__ import annotations

from typing import Any

from opforge.remote import withdrawals
from opforge.remote.signatures import keys
from opforge.remote.withdrawals import CHOOSING, LOADING, NOTHING, Withdrawal, Withdrawals


def withdraw(store: Any, *entries: str, reason: str = "", key: str = "ci", **options: Any) -> Withdrawals:
    """Withdraws entries, so that they are not loaded any more; without one renews the list of the key."""
    said = {f"op:{entry}": Withdrawal(LOADING, reason) for entry in entries}
    return withdrawals.publish(store, keys.signer(key), key, said, **options)


def withdraw_release(store: Any, release: str, reason: str = "wrong", stops: str = CHOOSING, key: str = "ci") -> None:
    """Withdraws a release, such as acme/relu@2.3."""
    said = {f"package:{release}": Withdrawal(stops, reason)}
    withdrawals.publish(store, keys.signer(key), key, said, renew_after=0.0)


def take_back(store: Any, release: str) -> None:
    """Takes the withdrawal of a release back."""
    withdraw_release(store, release, "", NOTHING)


def entries_of(listed: Withdrawals | None) -> list[str]:
    """Returns the entries that a list withdraws."""
    said = listed.withdrawn if listed else {}
    return [name.removeprefix("op:") for name, one in said.items() if one.stops != NOTHING]
