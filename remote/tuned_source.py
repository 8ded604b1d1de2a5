"""Fetches tuning results: signature, statement, fit. `builders/lookup/tuned.py` imports it if a remote is asked."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from opforge import memory, settings
from opforge.builders.lookup.tuned import Wanted
from opforge.cache.current import current_store
from opforge.cache.records import fetched
from opforge.cache.records.fetched import Fetched
from opforge.errors import RemoteError, SignatureError, TrustFileError
from opforge.machine_folder import make_folder, write_file

from . import answers, fetched_entries, topics, tuned_statements
from .accepted import Lists
from .remotes import Remote, configured
from .signatures import signing, trust
from .statements import Signed, UnreadableStatement
from .stores import open_store
from .tuned_statements import TunedKind

log = logging.getLogger("opforge")


def bring(path: str, what: Wanted) -> bool:
    """Fetches the first result that a remote has for an op on this machine; returns whether there is one now.

    What cannot be used costs a warning for each remote.
    """
    for remote in configured():
        if (settings.offline() and not remote.is_local) or answers.failure(remote):
            continue
        try:
            note = _offered(remote, what)
        except (RemoteError, OSError) as error:
            answers.note_failure(remote, str(error))
            log.warning("%s: no tuning result was fetched from %s: %s", what.op, remote, error)
            continue
        if note is not None and _is_kept(path, note, what.op):
            return True
    return False


def _is_kept(path: str, note: Fetched, op: str) -> bool:
    try:
        make_folder(os.path.dirname(path))
        write_file(path, note.to_bytes())
    except OSError as error:
        log.warning("%s: the tuning result of %s cannot be kept here (%s)", op, note.remote, error.strerror)
        return False
    return True


def _offered(remote: Remote, what: Wanted) -> Fetched | None:
    """Returns what a remote has for an op on this machine, verified; None if that is nothing. Raises RemoteError."""
    store = open_store(remote.url, settings.offline())
    items = topics.read_items(store, tuned_statements.topic_of(what.description), str(remote))
    if not items:
        return None
    stamp = tuple(memory.stamps_of([settings.trust_file()]))
    trusted = trust.Trust("") if remote.is_unsigned else trust.read()
    lists, problems = Lists(store, remote, trusted, False), list[str]()
    try:
        for item in items:
            try:
                signer = "" if remote.is_unsigned else _signer(item, what, trusted, lists, str(remote))
                value = tuned_statements.parse(item.data, what.description)
            except SignatureError as error:
                problems.append(error.reason)
            except (UnreadableStatement, _WithdrawnError) as error:
                problems.append(str(error))
            else:
                if _fits(value, what):
                    signatures = tuple(map(str, item.signatures))
                    return Fetched(str(remote), item.data.decode("ascii"), signatures, signer, stamp)
    finally:
        for listed in lists.new:  # they may take back what was fetched before
            fetched_entries.drop_withdrawn(current_store().layout, listed)
    if problems:
        reasons = "; ".join(dict.fromkeys(problems))
        log.warning("%s: the tuning results of %s are not used: %s", what.op, remote, reasons)
    return None


class _WithdrawnError(Exception):
    """A result is not chosen any more."""


def _signer(item: Signed, what: Wanted, trusted: trust.Trust, lists: Lists | None, where: str) -> str:
    """Returns the name of the key that signed a result, may sign it, and stands by it.

    Raises SignatureError, _WithdrawnError, UnreadableStatement, and StoreError.
    """
    title = f"{what.op}: a tuning result of {where}"
    signers = trusted.signers(title, item.data, item.signatures)  # before any of it is parsed
    value = tuned_statements.parse(item.data, what.description)
    signers = trust.allowed(signers, f"{tuned_statements.KIND}:{value['op']}", title)
    if lists is None:
        return signers[0].key.name
    name = f"{tuned_statements.KIND}:{tuned_statements.label_of(value)}"
    accepted = lists.accepted(title, name, signers, TunedKind.needs_withdrawals)
    if accepted.withdrawn:
        raise _WithdrawnError(f"the key {accepted.key} has withdrawn it: {accepted.withdrawn}")
    return accepted.key


def _fits(value: Mapping[str, Any], what: Wanted) -> bool:
    return bool((value["op"], value["target"], value["cores"]) == (what.op, what.target, what.cores))


def verify_again(path: str, what: Wanted) -> str:
    """Verifies what was fetched with the trust file as it is now; returns why it is not used any more, or "".

    What is not accepted is removed. If the trust file is damaged, what was accepted before is used.
    """
    try:
        note = fetched.read(path)
        stamp = tuple(memory.stamps_of([settings.trust_file()]))
        signatures = tuple(signing.parse(text, signing.SIGNATURE_BYTES) for text in note.signatures)
        signer = _signer(Signed(note.offer.encode("ascii"), signatures), what, trust.read(), None, note.remote)
        write_file(path, note._replace(signer=signer, trust=stamp).to_bytes())
    except TrustFileError as error:
        log.warning("%s: the tuning result that was fetched before is used, and no other: %s", what.op, error)
    except SignatureError as error:
        _drop(path)
        return error.reason
    except (OSError, ValueError) as error:
        _drop(path)
        return str(error)
    return ""


def _drop(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # another process was first
