"""What was fetched before: is it still accepted by the trust file, and is none of it withdrawn?"""

from __future__ import annotations

import logging
import os

from opforge.builders.lookup.remotes import Request
from opforge.cache.layout import FETCHED, Layout
from opforge.cache.records import fetched, tuned
from opforge.cache.records import triton as kernels
from opforge.cache.store import Rejected
from opforge.errors import SignatureError, TrustFileError
from opforge.machine_folder import write_file

from . import op_statements, triton_statements, tuned_statements
from .signatures import signing, trust
from .withdrawals import LOADING, Withdrawals

log = logging.getLogger("opforge")


def names(layout: Layout, description: str) -> list[str]:
    """Returns the names of the entries that were fetched for a description."""
    try:
        return sorted(os.listdir(layout.fetched(description)))
    except OSError:
        return []


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
            signatures = [signing.parse(text, signing.SIGNATURE_BYTES) for text in note.signatures]
            data = note.offer.encode("ascii")
            keys = trust.allowed(trusted.signers(name, data, signatures), f"op:{request.op}", name)
            if op_statements.parse(data, request.description).entry != name:
                raise ValueError("it is the offer of another entry")
            signer = note.signer if note.signer in [key.key.name for key in keys] else keys[0].key.name
            write_file(path, note._replace(signer=signer, trust=stamp).to_bytes())
            accepted = True
        except SignatureError as error:
            _drop(path)
            rejected.append(Rejected(layout.entry(name), error.reason))
            log.warning("%s: what was fetched before is no longer used: %s", request.op, error)
        except (OSError, ValueError):
            _drop(path)
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
    """Drops what was fetched by offers that a key has withdrawn since, so that it is not loaded any more."""
    drop_withdrawn_results(layout, listed)
    drop_withdrawn_kernels(layout, listed)
    withdrawn = {name.removeprefix("op:"): said for name, said in listed.withdrawn.items() if said.stops == LOADING}
    if not withdrawn:
        return
    try:
        descriptions = os.listdir(layout.path(FETCHED))
    except OSError:
        return  # nothing was fetched yet
    for description in descriptions:
        for name in withdrawn.keys() & {*names(layout, description)}:
            path = os.path.join(layout.fetched(description), name)
            try:
                is_withdrawn = fetched.read(path).signer == listed.key
            except (OSError, ValueError):
                is_withdrawn = True
            if is_withdrawn:
                _drop(path)
                text = "The fetched entry %s was withdrawn by the key %s and is not used: %s"
                log.warning(text, name, listed.key, withdrawn[name].reason or "it gave no reason")


def drop_withdrawn_results(layout: Layout, listed: Withdrawals) -> None:
    """Drops the tuning results that a key has withdrawn since they were fetched, so that they are not used any more."""
    withdrawn = {name: said for name, said in listed.withdrawn.items() if said.stops == LOADING}
    if not any(name.startswith(f"{tuned_statements.KIND}:") for name in withdrawn):
        return
    for found in tuned.stored(layout.root):
        if not found.is_fetched or found.problem:
            continue
        said = withdrawn.get(f"{tuned_statements.KIND}:{tuned_statements.label_of(found.value)}")
        if said is not None and fetched.read(found.path).signer == listed.key:
            _drop(found.path)
            text = "The fetched tuning result %s was withdrawn by the key %s and is not used: %s"
            log.warning(text, found.path, listed.key, said.reason or "it gave no reason")


def drop_withdrawn_kernels(layout: Layout, listed: Withdrawals) -> None:
    """Drops Triton's kernels that a key has withdrawn since they were fetched, so that they are not loaded any more."""
    begin = f"{triton_statements.KIND}:"
    withdrawn = {
        name.removeprefix(begin): said
        for name, said in listed.withdrawn.items()
        if said.stops == LOADING and name.startswith(begin)
    }
    for kernel in kernels.stored(layout.root) if withdrawn else ():
        title = f"{kernel.name}@{kernel.label}"
        if not kernel.is_fetched or title not in withdrawn:
            continue
        try:
            is_withdrawn = fetched.read(os.path.join(kernel.folder, kernels.FETCHED)).signer == listed.key
        except (OSError, ValueError):
            is_withdrawn = True
        if is_withdrawn:
            kernels.remove(kernel.folder)
            text = "Triton's fetched kernel %s was withdrawn by the key %s and is not used: %s"
            log.warning(text, title, listed.key, withdrawn[title].reason or "it gave no reason")


def _drop(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # another process was first
