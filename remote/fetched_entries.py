"""What was fetched before: is it still accepted by the trust file, and is none of it withdrawn?"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import NamedTuple

from opforge.builders.lookup.remotes import Request
from opforge.cache.layout import FETCHED, Layout
from opforge.cache.records import fetched
from opforge.cache.records.fetched import Fetched
from opforge.cache.store import Rejected
from opforge.errors import SignatureError, TrustFileError
from opforge.machine_folder import write_file

from . import op_statements, statements
from .remotes import Remote
from .signatures import trust
from .statements import Signed
from .withdrawals import LOADING, Withdrawals

log = logging.getLogger("opforge")


def names(layout: Layout, description: str) -> list[str]:
    """Returns the names of the entries that were fetched for a description."""
    try:
        return sorted(os.listdir(layout.fetched(description)))
    except OSError:
        return []


def note_of(remote: Remote, item: Signed, signer: str, stamp: tuple[int, ...]) -> Fetched:
    """Returns what is kept of a statement. `stamp` is the trust file's, from before it was read."""
    return Fetched(str(remote), item.data.decode("ascii"), tuple(map(str, item.signatures)), signer, stamp)


def item_of(note: Fetched) -> Signed:
    """Returns the statement of what was fetched. Raises ValueError if it is damaged."""
    return Signed(note.offer.encode("ascii"), statements.read_signatures(note.signatures))


def verify_note(path: str, verify: Callable[[Signed], str]) -> None:
    """Verifies a statement that is kept in a file, and notes that; `verify` returns the key's name.

    Raises OSError, ValueError, and what `verify` raises.
    """
    note, stamp = fetched.read(path), fetched.trust_stamp()
    write_file(path, note._replace(signer=verify(item_of(note)), trust=stamp).to_bytes())


def verify_again(request: Request) -> tuple[bool, tuple[Rejected, ...]]:
    """Verifies what was fetched for a request with the trust file as it is now; returns whether any may be used again.

    What is not accepted any more is no longer found, and returned with the reason. If the trust file is damaged, what
    was accepted before is used: it is verified when the file is corrected. Raises TrustFileError if others could have
    changed the file.
    """
    layout, accepted, trusted, is_read = request.store.layout, False, None, False
    rejected = list[Rejected]()
    folder = layout.fetched(request.description)
    for name in names(layout, request.description):
        path = os.path.join(folder, name)
        try:
            note = fetched.read(path)
            if note.problem(request.store.disk) is None:
                continue
            stamp = fetched.trust_stamp(request.store.disk)  # before it is read: it may change meanwhile
            if not is_read:
                trusted, is_read = _trusted(request.op), True
            if trusted is None:
                write_file(path, note._replace(trust=stamp).to_bytes())
                accepted = True
                continue
            item = item_of(note)
            keys = trust.allowed(trusted.signers(name, item.data, item.signatures), f"op:{request.op}", name)
            if op_statements.parse(item.data, request.description).entry != name:
                raise ValueError("it is the offer of another entry")
            signer = note.signer if note.signer in [key.key.name for key in keys] else keys[0].key.name
            write_file(path, note._replace(signer=signer, trust=stamp).to_bytes())
            accepted = True
        except SignatureError as error:
            drop(path)
            rejected.append(Rejected(layout.entry(name), error.reason))
            log.warning("%s: what was fetched before is no longer used: %s", request.op, error)
        except (OSError, ValueError):
            drop(path)
    return accepted, tuple(rejected)


def _trusted(op: str) -> trust.Trust | None:
    """Returns what the trust file says; None if it is damaged. Raises TrustFileError if others could change it."""
    path, data = trust.content()
    try:
        return trust.parse(path, data)
    except TrustFileError as error:
        log.warning("%s: what was fetched before is used, and nothing else: %s", op, error)
        return None


def drop_withdrawn(layout: Layout, listed: Withdrawals) -> None:
    """Drops what was fetched by statements that a key has withdrawn since, so that it is not loaded any more."""
    withdrawn = {name: said.reason for name, said in listed.withdrawn.items() if said.stops == LOADING}
    kinds = {name.partition(":")[0] for name in withdrawn}
    for kept in chain.from_iterable(KEPT[kind](layout) for kind in KEPT if kind in kinds):
        if kept.name not in withdrawn:
            continue
        try:
            is_withdrawn = fetched.read(kept.note).signer == listed.key
        except (OSError, ValueError):
            is_withdrawn = True
        if is_withdrawn:
            kept.drop()
            reason = withdrawn[kept.name] or "it gave no reason"
            text = "The fetched %s was withdrawn by the key %s and is not used: %s"
            log.warning(text, kept.shown, listed.key, reason)


class _Kept(NamedTuple):
    """Something that was fetched and may be withdrawn."""

    name: str
    """What withdrawals call it."""
    shown: str
    """What messages call it."""
    note: str
    """The file that says who signed it."""
    drop: Callable[[], object]


def _entries(layout: Layout) -> Iterator[_Kept]:
    try:
        descriptions = os.listdir(layout.path(FETCHED))
    except OSError:
        return  # nothing was fetched yet
    for description in descriptions:
        for name in names(layout, description):
            path = os.path.join(layout.fetched(description), name)
            yield _Kept(f"op:{name}", f"entry {name}", path, partial(drop, path))


def _results(layout: Layout) -> Iterator[_Kept]:
    from opforge.cache.records import tuned

    from .tuned_statements import KIND, label_of

    for found in tuned.stored(layout.root):
        if found.is_fetched and not found.problem:
            name, shown = f"{KIND}:{label_of(found.value)}", f"tuning result {found.path}"
            yield _Kept(name, shown, found.path, partial(drop, found.path))


def _kernels(layout: Layout) -> Iterator[_Kept]:
    from opforge.cache.records import triton

    for kernel in triton.stored(layout.root):
        if kernel.is_fetched:
            title, note = f"{kernel.name}@{kernel.label}", os.path.join(kernel.folder, triton.FETCHED)
            yield _Kept(f"triton:{title}", f"Triton kernel {title}", note, partial(triton.remove, kernel.folder))


KEPT: Mapping[str, Callable[[Layout], Iterator[_Kept]]] = {"op": _entries, "tuned": _results, "triton": _kernels}
"""What is kept of each kind. A bundle of compiled graphs is looked at when it is used: graphs/remote.py."""


def drop(path: str) -> None:
    """Removes what is kept of a statement: what it brought is not found any more."""
    try:
        os.unlink(path)
    except OSError:
        return  # another process was first
