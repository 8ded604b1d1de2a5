"""DeepSpeed's functions: `initialize`, `vector_kernel_level`, `torch.ops.deepspeed.inference_all_reduce(_)`.

What differs: the ranks find out by themselves whether they share a host, and LOCAL_SIZE is not read. If they do not,
the ops do not exist, and DeepSpeed uses the process group instead. Every dtype, size and stride is reduced.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from opforge.errors import GroupError, NamespaceClashError
from opforge.fast_path.library import record_kernels

from .group import Group

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "opforge_inference"
log = logging.getLogger("opforge")


class _World:
    """The group of all ranks, and the store that it was made with."""

    group: Group | None = None
    store: Any = None
    library: Any = None
    created = 0


def initialize(op: Any, size: int, rank: int) -> None:
    """Makes the group of all ranks, which must all call this, and registers the ops. Again, it does nothing.

    It uses the store of torch.distributed's default group, or the one that the environment names (MASTER_ADDR,
    MASTER_PORT). Raises GroupError if a rank does not come, and NamespaceClashError if DeepSpeed's own op is loaded.
    """
    store = _store(size, rank)
    group = _World.group
    if group is not None and _World.store is store and group._pid == os.getpid():
        return
    _World.created += 1
    dist: Any = torch.distributed
    prefix = dist.PrefixStore(f"{PREFIX}/{_World.created}", store)
    try:
        _World.group = Group(prefix, rank, size, op=op)
    except GroupError as error:
        if error.reason != "elsewhere":
            raise
        log.info("inference_all_reduce uses the process group: %s", error.problem)
        return
    if group is not None:
        group.close()
    _World.store = store
    _register()


def _store(size: int, rank: int) -> Any:
    dist: Any = torch.distributed
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    if _World.store is None:
        if size == 1:
            return dist.HashStore()
        return next(iter(dist.rendezvous("env://", rank, size)))[0]
    return _World.store


def _register() -> None:
    if _World.library is not None:
        return
    kind: Any = torch.library.Library
    record_kernels()  # compiled graphs depend on what is registered below
    library = kind("deepspeed", "FRAGMENT")
    try:
        library.define("inference_all_reduce(Tensor self) -> Tensor")
        library.define("inference_all_reduce_(Tensor(a!) self) -> Tensor(a!)")
    except RuntimeError as error:
        raise NamespaceClashError("shm_comm", "deepspeed::inference_all_reduce", "DeepSpeed's own op") from error
    library.impl("inference_all_reduce", lambda tensor: _all_reduce_(tensor.clone()), "CPU")
    library.impl("inference_all_reduce_", _all_reduce_, "CPU")
    library.impl("inference_all_reduce", torch.empty_like, "Meta")
    library.impl("inference_all_reduce_", lambda tensor: tensor, "Meta")
    torch.ops.deepspeed.inference_all_reduce_.default.py_functionalize_impl(_functionalized)
    _World.library = library


def _all_reduce_(tensor: Tensor) -> Tensor:
    if _World.group is not None:
        _World.group.all_reduce(tensor)
    return tensor


def _functionalized(context: Any, tensor: Any) -> Any:
    """Replaces the op in place by the other one: torch cannot trace an op that returns what it changes."""
    with context.redispatch_to_next():
        reduced = torch.ops.deepspeed.inference_all_reduce.default(context.unwrap_tensors(tensor))
    context.replace(tensor, reduced)
    context.commit_update(tensor)
    context.sync(tensor)
    return tensor


def vector_kernel_level() -> int:
    """Returns 2: the ops reduce every dtype on every CPU. DeepSpeed uses them for 16-bit types from level 2 on."""
    return 2


def functions(op: Any) -> dict[str, Any]:
    """Returns the op's Python functions."""
    return {"initialize": partial(initialize, op), "vector_kernel_level": vector_kernel_level}
