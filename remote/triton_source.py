"""Fetches what Triton would compile or time itself: signature, statement, blob, digests.

It holds machine code, so it is never taken from a remote with `unsigned=1`. A miss needs no memory: what no remote has
is compiled, and kept.
"""

from __future__ import annotations

import logging
import os
import shutil

from opforge import memory, settings
from opforge.cache import staging
from opforge.cache.maintenance import limits
from opforge.cache.records import fetched
from opforge.cache.records import triton as records
from opforge.cache.records.fetched import Fetched
from opforge.cache.records.triton import FETCHED, Kernel
from opforge.cache.store import Store
from opforge.errors import ExtraNotInstalledError, RemoteError, SignatureError
from opforge.events import emit
from opforge.machine_folder import write_file

from . import answers, blobs, fetched_entries, topics, triton_statements
from .accepted import Lists
from .remotes import Remote, configured
from .signatures import signing, trust
from .statements import Signed
from .stores import open_store
from .stores.protocol import ObjectStore
from .triton_statements import KIND, KernelOffer, TritonKind

log = logging.getLogger("opforge")
FAILURES = (RemoteError, ExtraNotInstalledError, OSError)


def bring(store: Store, key: str, filename: str) -> bool:
    """Fetches what a remote has for a key of Triton's into a store; returns whether it is there now.

    `filename` is the file that Triton looks for. What cannot be used costs a warning for each remote.
    """
    name = records.name_of(filename)
    for remote in configured():
        reason = _reason(remote)
        if reason:
            log.info("%s: %s is not asked: %s", name, remote, reason)
            continue
        try:
            if _fetch(remote, store, key, filename):
                limits.enforce_settings(store.layout)
                return True
        except FAILURES as error:
            if isinstance(error, RemoteError):
                answers.note_failure(remote, str(error).removeprefix(f"{remote}: "))
            log.warning("%s: nothing was fetched from %s: %s", name, remote, error)
    return False


def _reason(remote: Remote) -> str:
    """Returns why a remote must not be asked now; empty if it may."""
    if settings.offline() and not remote.is_local:
        return "OPFORGE_OFFLINE=1 forbids the network"
    return triton_statements.UNSIGNED if remote.is_unsigned else answers.failure(remote)


def _fetch(remote: Remote, store: Store, key: str, filename: str) -> bool:
    """Fetches the first that is accepted; returns whether there is one. Raises one of FAILURES."""
    objects, name = open_store(remote.url, settings.offline()), records.name_of(filename)
    items = topics.read_items(objects, triton_statements.topic_of(key), str(remote))
    if not items:
        return False
    stamp = _trust_stamp()
    trusted = trust.read()
    lists, problems = Lists(objects, remote, trusted, False), list[str]()
    try:
        for item in items:
            try:
                offer, signer = _judged(item, key, name, trusted, lists)
                signatures = tuple(map(str, item.signatures))
                note = Fetched(str(remote), item.data.decode("ascii"), signatures, signer, stamp)
                _take(objects, store, offer, note, filename)
                return True
            except SignatureError as error:
                problems.append(error.reason)
            except ValueError as error:  # of a statement, a blob, or its files
                problems.append(str(error))
        return False
    finally:
        for listed in lists.new:
            fetched_entries.drop_withdrawn(store.layout, listed)
        if problems:
            reasons = "; ".join(dict.fromkeys(problems))
            log.warning("%s: what %s has is not used: %s. Triton makes it itself", name, remote, reasons)


def _judged(item: Signed, key: str, name: str, trusted: trust.Trust, lists: Lists | None) -> tuple[KernelOffer, str]:
    """Returns what a statement offers, and the key that signed it, may sign it, and stands by it.

    Nothing of it is parsed before a signature is verified. Raises SignatureError, ValueError, StoreError.
    """
    what = f"{name}: a kernel of Triton's"
    signers = trust.allowed(trusted.signers(what, item.data, item.signatures), f"{KIND}:{name}", what)
    offer = triton_statements.parse(item.data, key)
    if offer.facts["name"] != name:
        raise ValueError(f"it is a kernel {offer.facts['name']!r}, expected {name!r}")
    if lists is None:
        return offer, signers[0].key.name
    accepted = lists.accepted(what, offer.title, signers, TritonKind.needs_withdrawals)
    if accepted.withdrawn:
        raise ValueError(f"the key {accepted.key} has withdrawn it: {accepted.withdrawn}")
    return offer, accepted.key


def _take(objects: ObjectStore, store: Store, offer: KernelOffer, note: Fetched, filename: str) -> None:
    """Fetches what is offered into a store. Raises ValueError for other files than these, RemoteError, OSError."""
    staged = staging.new_folder(store.layout, offer.key)
    try:
        finished = os.path.join(staged, "kernel")
        with open(os.path.join(staged, "blob"), "w+b") as file:
            objects.download(offer.tree.blob.name, file, offer.tree.blob.size)
            files = {part.path: part.sha256 for part in blobs.unpack(file, offer.tree, finished)}
        if filename not in files:
            raise ValueError(f"it has no {filename}")
        records.write(finished, offer.facts, files)
        write_file(os.path.join(finished, FETCHED), note.to_bytes())
        folder = records.add(store.layout, finished, offer.key)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    fields = {"bytes": offer.tree.blob.size, "path": note.remote, "result": os.path.basename(folder)}
    emit("fetch", op=offer.facts["name"], **fields)


def verify_again(kernel: Kernel) -> str:
    """Verifies what was fetched with the trust file as it is now; returns why it must not be used, or ""."""
    path = os.path.join(kernel.folder, FETCHED)
    try:
        note, stamp = fetched.read(path), _trust_stamp()
        signatures = tuple(signing.parse(text, signing.SIGNATURE_BYTES) for text in note.signatures)
        item = Signed(note.offer.encode("ascii"), signatures)
        offer, signer = _judged(item, kernel.key, kernel.name, trust.read(), None)
        if offer.tree.digest != kernel.digest or offer.facts != kernel.facts:
            return "it is not what was signed"
        write_file(path, note._replace(signer=signer, trust=stamp).to_bytes())
    except SignatureError as error:
        return error.reason
    except (RemoteError, OSError, ValueError) as error:
        return str(error)
    return ""


def _trust_stamp() -> tuple[int, ...]:
    return tuple(memory.stamps_of([settings.trust_file()]))
