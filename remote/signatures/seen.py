"""Records the newest list of each signer in each store that this user has seen: an older one is not accepted later.

    STATE/seen/ID.json     STATE is $XDG_STATE_HOME/opforge; ID is of the store and the signer's public key

Whoever controls a store can put back what was there before, with its signature. So the number and the digest of the
newest of each signer are kept, whatever it is that has them: a list of revoked offers, for one. That is state, and no
cache: what it holds cannot be asked for again. It is bounded by the keys that are trusted.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.filesystem import lock
from opforge.cache.keys import key_of
from opforge.cache.schema import TEXT, FormatError
from opforge.errors import LockTimeoutError
from opforge.foundation import environment, formats, settings
from opforge.foundation import file_owners as owners
from opforge.foundation.files import can_write, make_folder, write_file
from opforge.remote.stores.urls import named, resolved, spelled

from .signing import Named

log = logging.getLogger("opforge")
FOLDER = "seen"
SAID = schema.record(
    {"id": TEXT, "withdrawn": schema.table(schema.NUMBER), "released": schema.table(schema.table(TEXT))}
)
SCHEMA = schema.record(
    {"format": schema.version(formats.SEEN), "store": TEXT, "signer": TEXT, "number": schema.whole(), "digest": TEXT},
    optional={"said": SAID},
)
LOSS = "a revocation may be hidden from this machine later"
HINT = "Set XDG_STATE_HOME to a folder of your own that stays"
COMPARE = "ompare the list of withdrawals with its signer's"
_warned = set[str]()


class Seen(NamedTuple):
    """The newest of a signer in a store."""

    number: int = 0
    """It rises with each change; 0 if nothing was seen."""
    digest: str = ""
    said: Mapping[str, Any] = MappingProxyType({})
    """Its content, as its reader wrote it for `lacking`, of the form SAID; empty if that is not kept."""


class _Unkept(Exception):
    """The record of seen lists cannot be read or written; the text gives the reason."""

    def __init__(self, reason: str, is_damaged: bool = False) -> None:
        super().__init__(reason)
        self.is_damaged = is_damaged

    def refusal(self) -> str:
        """Returns why nothing is used, if the trust file requires that all that was seen is known."""
        hint = HINT[:1].lower() + HINT[1:]
        if self.is_damaged:
            hint = f"remove that file, if nobody else can have changed it, and c{COMPARE}"
        reason = f"the record of its signer's lists cannot be kept in {folder()} ({self})"
        return f"{reason}, and the trust file requires that: {hint}"

    def warn(self) -> None:
        """Warns of it, once in a process."""
        if str(self) in _warned:
            return
        _warned.add(str(self))
        if self.is_damaged:
            text = "The record of seen lists was damaged and is created again: %s: %s. C%s."
            log.warning(text, self, "a revocation may be hidden from this machine", COMPARE)
        else:
            log.warning("The record of seen lists cannot be kept in %s (%s): %s. %s.", folder(), self, LOSS, HINT)


def folder() -> str:
    """Returns the folder that holds it all."""
    return os.path.join(environment.state_dir(), FOLDER)


def reset() -> None:
    """Forgets which warnings were given: each is given again."""
    _warned.clear()


def problem(
    store: str,
    signer: Named,
    stated: Seen,
    is_required: bool = False,
    shown: Callable[[int], str] = "number {}".format,
    lacking: Callable[[Mapping[str, Any]], str] | None = None,
) -> str:
    """Returns why what a store has of a signer must not be used, or an empty text; keeps what is newer.

    Where nothing can be kept there is one warning, unless it `is_required`: then that is the problem. `shown` returns
    how messages name a number. `lacking` returns what is wrong with a newer one, compared to what the one before said.
    """
    path = _path(store, signer)
    try:
        newest_kept = _read(path)
        if newest_kept.number > stated.number:
            return f"it is {shown(stated.number)}, and {shown(newest_kept.number)} was seen before"
        if newest_kept.number == stated.number and newest_kept.digest != stated.digest:
            return f"it is not the {shown(stated.number)} that was seen before"
        if lacking and newest_kept.said and (cause := lacking(newest_kept.said)):
            return cause
        if newest_kept != stated:
            _keep(path, store, signer, stated)
    except _Unkept as error:
        if is_required:
            return error.refusal()
        error.warn()
        # What is seen from now on is kept, unless it may be read again a moment later: an older list would replace it.
        if error.is_damaged or isinstance(error.__cause__, PermissionError):
            try:
                _keep(path, store, signer, stated, is_damaged=True)
            except _Unkept:
                return ""
    return ""


def problem_of_none(
    store: str, signer: Named, is_required: bool = False, shown: Callable[[int], str] = "number {}".format
) -> str:
    """Returns why nothing of a signer must be used if a store has none of what is kept of it, or an empty text.

    The arguments are those of `problem`. Where it is not known whether something was seen, there is one warning.
    """
    try:
        known = _read(_path(store, signer)).number
        if is_required:
            _require_writable()
    except _Unkept as error:
        if is_required:
            return error.refusal()
        error.warn()
        return ""
    return f"it is gone, and {shown(known)} was seen before" if known else ""


def newest(store: str, signer: Named) -> Seen:
    """Returns the newest record of a signer in a store; an empty one if it cannot be read."""
    try:
        return _read(_path(store, signer))
    except _Unkept:
        return Seen()


def _path(store: str, signer: Named) -> str:
    # A link to a folder is the same store: by another name an older list would pass for the newest.
    return os.path.join(folder(), f"{key_of([spelled(resolved(store)), str(signer)])}.json")


def _read(path: str) -> Seen:
    """Returns the record in a file; an empty one if there is no file. Raises _Unkept."""
    _require_own(os.path.dirname(path))
    try:
        value = schema.read(path, SCHEMA)
        return Seen(value["number"], value["digest"], value.get("said", {}))
    except FileNotFoundError:
        return Seen()
    except OSError as error:
        raise _Unkept(str(error.strerror)) from error
    except FormatError as error:
        raise _Unkept(f"{path} is damaged: {error}", is_damaged=True) from error


def _require_own(path: str) -> None:
    """Raises _Unkept if others could change what is kept in a folder."""
    if cause := owners.folder_problem(path, owners.trusted_ids(settings.trusted_owners())):
        raise _Unkept(cause[0])


def _require_writable() -> None:
    """Makes the folder. Raises _Unkept if nothing can be kept in it."""
    try:
        make_folder(folder())
    except OSError as error:
        raise _Unkept(str(error.strerror)) from error
    _require_own(folder())
    if not can_write(folder()):
        raise _Unkept("it cannot be written")


def _keep(path: str, store: str, signer: Named, stated: Seen, is_damaged: bool = False) -> None:
    """Writes a record, unless another process has written a newer one meanwhile. Raises _Unkept."""
    parts = {
        "store": named(store),
        "signer": str(signer),
        "number": stated.number,
        "digest": stated.digest,
    }
    said = {"said": dict(stated.said)} if stated.said else {}
    try:
        make_folder(folder())
        _require_own(folder())
        with lock.acquire(os.path.join(folder(), "lock"), "what was seen of remotes", settings.lock_timeout()):
            known = Seen() if is_damaged else _read(path)
            if known.number < stated.number or (known.number == stated.number and not known.said):
                write_file(path, json.dumps({"format": formats.SEEN, **parts, **said}).encode())
    except LockTimeoutError as error:
        raise _Unkept(str(error)) from error
    except OSError as error:
        raise _Unkept(str(error.strerror)) from error
