"""Publishes what Triton compiled or timed itself: the blob first, then a statement under Triton's key."""

from __future__ import annotations

import functools
import tempfile
from typing import NamedTuple

from opforge.cache.records.triton import Kernel
from opforge.cache.trees import path_problem
from opforge.errors import PublishError
from opforge.events import emit

from . import blobs, statements, topics, triton_statements
from .publish import Blob, add_statement
from .remotes import Remote
from .signatures.keys import Signer
from .stores.protocol import ObjectStore


class PushedKernel(NamedTuple):
    """The result for one kernel, or for timings."""

    name: str
    label: str
    target: str
    size: int
    """Bytes of the blob."""
    is_new: bool
    """False if the store had it already."""


def push(store: ObjectStore, remote: Remote, kernel: Kernel, signer: Signer | None) -> PushedKernel:
    """Publishes a kernel. Raises PublishError, also without a signer, StoreError, ExtraNotInstalledError, OSError."""
    what = f"triton:{kernel.name}"
    if signer is None:
        hint = "Leave out unsigned=1, and sign it"
        raise PublishError(what, str(remote), triton_statements.UNSIGNED, hint)
    try:
        for path in kernel.record["files"]:
            if problem := path_problem(path):
                raise ValueError(problem)
        with tempfile.TemporaryFile() as file:
            tree, hashes = blobs.pack(kernel.folder, kernel.record["files"], file)
            if hashes != kernel.record["files"]:
                raise ValueError(f"the files in {kernel.folder} are damaged, or were changed")
            stated = triton_statements.statement(kernel.key, kernel.facts, tree)
            item = statements.signed(stated, [signer], topics.MAX_ITEM_BYTES)
            offer = triton_statements.parse(item.data)  # what nobody could read must not be published
            name, change = triton_statements.topic_of(kernel.key), functools.partial(triton_statements.merge, item=item)
            is_new = add_statement(store, name, item, change, what, str(remote), Blob(tree, file), signer)
    except ValueError as error:
        raise PublishError(what, str(remote), str(error), "Nothing was published") from error
    if is_new:
        emit("push", op=kernel.name, bytes=tree.blob.size, path=str(remote), result=kernel.key)
    return PushedKernel(kernel.name, offer.label, kernel.facts["target"], tree.blob.size, is_new)
