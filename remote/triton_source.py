"""Fetches what Triton would compile or time itself: signature, statement, blob, digests.

It holds machine code, so it is never taken from a remote with `unsigned=1`. A miss needs no memory: what no remote has
is compiled, and kept.
"""

from __future__ import annotations

import os
import shutil
from functools import partial

from opforge.cache import staging
from opforge.cache.maintenance import limits
from opforge.cache.records import triton as records
from opforge.cache.records.fetched import Fetched
from opforge.cache.records.triton import FETCHED, Kernel
from opforge.cache.store import Store
from opforge.errors import ExtraNotInstalledError, RemoteError, SignatureError
from opforge.events import emit
from opforge.machine_folder import write_file

from . import blobs, first, kept, triton_statements
from .accepted import Lists, judge
from .first import Asked
from .signatures import trust
from .statements import Signed
from .stores.protocol import ObjectStore
from .triton_statements import KernelOffer, TritonKind


def bring(store: Store, key: str, filename: str) -> bool:
    """Fetches what a remote has for a key of Triton's into a store; returns whether it is there now.

    `filename` is the file that Triton looks for. What cannot be used costs a warning for each remote.
    """
    name = records.name_of(filename)

    def taken(asked: Asked, item: Signed) -> bool:
        offer, signer = _judged(item, key, name, asked.trusted, asked.lists)
        _take(asked.store, store, offer, asked.note(item, signer), filename)
        return True

    is_new = first.take(name, triton_statements.topic_of(key), store.layout, taken, triton_statements.UNSIGNED)
    if is_new:
        limits.enforce_settings(store.layout)
    return is_new


def _judged(item: Signed, key: str, name: str, trusted: trust.Trust | None, lists: Lists) -> tuple[KernelOffer, str]:
    """Returns what a statement offers, and the key that signed it. Raises SignatureError, ValueError, StoreError."""
    parse = partial(_parse, key, name)
    return judge(item, f"{name}: a kernel of Triton's", parse, trusted, lists, TritonKind.needs_withdrawals)


def _parse(key: str, name: str, data: bytes) -> KernelOffer:
    offer = triton_statements.parse(data, key)
    if offer.facts["name"] != name:
        raise ValueError(f"it is a kernel {offer.facts['name']!r}, expected {name!r}")
    return offer


def _take(objects: ObjectStore, store: Store, offer: KernelOffer, note: Fetched, filename: str) -> None:
    """Fetches what is offered into a store. Raises ValueError for other files than these, RemoteError, OSError."""
    staged = staging.new_folder(store.layout, offer.key)
    try:
        finished = os.path.join(staged, "kernel")
        files = {part.path: part.sha256 for part in blobs.fetch(objects, offer.tree, staged, "kernel")}
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
    """Verifies what was fetched with the trust file as it is now; returns why it must not be used now, or "".

    The rule is that of `kept`.
    """

    def parse(data: bytes) -> KernelOffer:
        offer = _parse(kernel.key, kernel.name, data)
        if offer.tree.digest != kernel.digest or offer.facts != kernel.facts:
            raise ValueError("it is not what was signed")
        return offer

    try:
        kept.verify_note(os.path.join(kernel.folder, FETCHED), f"{kernel.name}: a kernel of Triton's", parse)
    except SignatureError as error:
        return error.reason
    except (RemoteError, ExtraNotInstalledError, OSError, ValueError) as error:
        return str(error)
    return ""
