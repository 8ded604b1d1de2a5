"""Decides whose clock is wrong: a store stamps files by its own clock, with which this machine's is compared.

A list of withdrawals that is dated ahead is refused by all readers until that day. So it is not published.
"""

from __future__ import annotations

import os
import time

from opforge.errors import PublishError, StoreError

from .stores.protocol import ObjectStore

MARK = "clock-"
PROBE = f"v1/claims/{MARK}"
"""How the names of the files begin by which a store is asked for its time. `gc` removes one that is left."""
WRONG_SECONDS = 3600.0
"""How much this machine's clock and a store's may differ for what is signed with a date."""
DATE = "%Y-%m-%dT%H:%M:%SZ"


def of_store(store: ObjectStore) -> float | None:
    """Returns a store's time, in seconds since the epoch; None if it does not say. Raises StoreError if it fails."""
    name = f"{PROBE}{os.urandom(8).hex()}.json"
    store.put_if_absent(name, b"{}")
    now = written(store, name)
    try:
        store.delete(name)
    except StoreError:
        return now  # who may not delete there: `gc` does, after a day
    return now


def written(store: ObjectStore, name: str) -> float | None:
    """Returns when a file of a store was written, by the store's clock; None if it does not say."""
    try:
        return store.modified(name)
    except StoreError:
        return None


def require_right(store: ObjectStore, date: float) -> None:
    """Raises PublishError if a date of today differs from a store's time; StoreError."""
    now = of_store(store)
    if now is None or abs(date - now) <= WRONG_SECONDS:
        return
    word = "ahead of" if date > now else "behind"
    problem = f"this machine's clock says {_day(time.time())}, {word} the store's, which says {_day(now)}"
    hint = "Correct the clock: a list with a wrong date would stop every user who fetches"
    raise PublishError("the list of withdrawals", store.url, problem, hint)


def explained(store: ObjectStore, name: str, date: float, now: float) -> str:
    """Returns whose clock is wrong if a file of a store states a date that lies ahead of this machine's time."""
    stamp = written(store, name)
    if stamp is None:
        return "the clock here is behind, or its signer's clock was ahead"
    if stamp > now + WRONG_SECONDS:
        return f"the store has had it since {_day(stamp)}, so the clock here is behind: set it"
    return f"the store has had it since {_day(stamp)}, so its signer's clock was ahead"


def _day(date: float) -> str:
    return time.strftime(DATE, time.gmtime(date))
