"""The answers of remotes that this machine remembers: misses, failures, and the lists of withdrawals.

It lies beside the remembered look-ups, may be lost at any time, and is then asked for again. What must not be lost is
kept in `signatures/seen.py`.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from opforge.builders.lookup.remotes import Request
from opforge.cache import schema
from opforge.cache.keys import key_of
from opforge.errors import StoreError
from opforge.foundation import remembered_values, remembered_values_writer, settings
from opforge.foundation.remembered_values import FlatStamps

from . import withdrawal_lists
from .remotes import Remote
from .signatures.trust_file import TrustedKey
from .stores.urls import OPENING
from .withdrawal_lists import Withdrawals

OFFLINE = "OPFORGE_OFFLINE=1 forbids the network"
MISS_SECONDS = 600.0
"""How long a remote is not asked again for what it had not."""
FAILED_SECONDS = 60.0
"""How long a remote that has failed is left alone."""
WITHDRAWN_SECONDS = 3600.0
"""How long a list of withdrawals is used before it is read again."""
ANSWER = schema.record({"at": schema.NUMBER, "reason": schema.TEXT})
"""The fields of a remembered miss, and of a remembered failure."""
LIST = schema.record({"at": schema.NUMBER, "list": schema.TEXT})


def _name(kind: str, *parts: object) -> str:
    return f"remote-{kind}-{key_of([str(part) for part in parts])[:24]}"


def _recall(name: str, seconds: float, declared: schema.Schema = ANSWER) -> dict[str, Any] | None:
    """Returns a value that was remembered at most so many seconds ago; None if there is none."""
    found = remembered_values.recall(name)
    if found is None or schema.problem(found[0], declared):
        return None
    value: dict[str, Any] = found[0]
    return value if 0 <= time.time() - value["at"] <= seconds else None


def _remember(name: str, watched: FlatStamps, **fields: object) -> None:
    """Remembers fields as long as the files are the same. Their stamps are taken now: later ones prove nothing."""
    remembered_values_writer.remember(name, watched, {"at": time.time(), **fields}, time.time_ns())


def _trust() -> FlatStamps:
    """Returns the stamp of the trust file: after a change of it, a remote is asked again."""
    paths = [settings.trust_file()]
    return FlatStamps(paths, remembered_values.stamps_of(paths))


def note_miss(remote: Remote, request: Request, reason: str) -> None:
    """Remembers that a remote had nothing that can be used for a request."""
    _remember(_miss_name(remote, request), _trust(), reason=reason)


def _miss_name(remote: Remote, request: Request) -> str:
    return _name("miss", remote, request.description, request.target, request.is_exact)


def miss(remote: Remote, request: Request) -> str:
    """Returns why a remote is not asked again for a request now; empty if it is."""
    value = _recall(_miss_name(remote, request), MISS_SECONDS)
    if value is None or value["at"] < request.since:
        return ""
    seconds = time.time() - value["at"]
    again = f"it is asked again after {MISS_SECONDS / 60:g} minutes, or by opforge fetch"
    return f"{value['reason']}, {seconds:.0f} s ago; {again}"


def note_failure(remote: Remote, error: Exception) -> bool:
    """Remembers that a remote has failed, if an error is its own answer; returns whether it is.

    The trust file, a key, a setting, a package that is not installed and a full disk are this machine's: a remote that
    is left alone for them would still be after they are corrected.
    """
    is_its_own = isinstance(error, StoreError) and error.operation != OPENING
    if is_its_own:
        _remember(_name("failure", remote), FlatStamps(), reason=str(error).removeprefix(f"{remote}: "))
    return is_its_own


def failure(remote: Remote) -> str:
    """Returns why a remote is left alone now; empty if it is not."""
    value = _recall(_name("failure", remote), FAILED_SECONDS)
    if value is None:
        return ""
    return f"it failed {time.time() - value['at']:.0f} s ago and is left alone for a minute: {value['reason']}"


def not_asked(remote: Remote) -> str:
    """Returns why a remote must not be asked now; empty if it may."""
    return OFFLINE if settings.offline() and not remote.is_local else failure(remote)


class Noted(NamedTuple):
    """A key's list of withdrawals as it was read from a store."""

    listed: Withdrawals | None
    """None if there was none."""
    content: bytes
    """The file that held it, with its signature."""
    is_recent: bool = True
    """Whether it was read at most WITHDRAWN_SECONDS ago."""


def note_withdrawn(remote: Remote, trusted: TrustedKey, content: bytes) -> None:
    """Remembers the file of a key's list of withdrawals, which was verified; empty if there was none."""
    _remember(_name("withdrawn", remote, trusted.key), FlatStamps(), list=content.decode("ascii"))


def withdrawn(remote: Remote | str, trusted: TrustedKey) -> Noted | None:
    """Returns the list of withdrawals of a key that was read last from a remote; None if none is remembered."""
    value = _recall(_name("withdrawn", remote, trusted.key), float("inf"), LIST)
    if value is None:
        return None
    content = value["list"].encode()
    try:
        listed = withdrawal_lists.parse(withdrawal_lists.signed(content).data) if content else None
    except ValueError:
        return None
    return Noted(listed, content, time.time() - value["at"] <= WITHDRAWN_SECONDS)
