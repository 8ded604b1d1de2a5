"""Publishes what Triton compiled or timed itself: the blob first, then a statement under Triton's key."""

from __future__ import annotations

import tempfile
from typing import NamedTuple

from opforge.cache.records.triton import Kernel
from opforge.cache.trees import path_problem
from opforge.errors import PublishError
from opforge.events import emit

from . import blobs, triton_statements
from .publish import Blob, add_statement, refuse_foreign
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
    refuse_foreign(what, remote, "a remote" if kernel.is_fetched else "")
    try:
        for path in kernel.record["files"]:
            if problem := path_problem(path):
                raise ValueError(problem)
        with tempfile.TemporaryFile() as file:
            tree, hashes = blobs.pack(kernel.folder, kernel.record["files"], file)
            if hashes != kernel.record["files"]:
                raise ValueError(f"the files in {kernel.folder} are damaged, or were changed")
            stated = triton_statements.statement(kernel.key, kernel.facts, tree)
            merge = triton_statements.merge
            is_new = add_statement(store, stated, signer, merge, what, str(remote), Blob(tree, file))
    except ValueError as error:
        raise PublishError(what, str(remote), str(error), "Nothing was published") from error
    if is_new:
        emit("push", op=kernel.name, bytes=tree.blob.size, path=str(remote), result=kernel.key)
    return PushedKernel(
        kernel.name, triton_statements.offer_of(stated).label, kernel.facts["target"], tree.blob.size, is_new
    )
