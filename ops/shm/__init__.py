"""Tensors among the processes of one host, through shared memory.

    from opforge.ops import shm

    shm.register()                                          # a backend of torch.distributed
    torch.distributed.init_process_group("cpu:opforge_shm")

    group = shm.Group(store, rank, size)                    # or without torch.distributed's groups
    group.all_reduce(tensor, "sum")

All ranks of a group make the same calls in the same order. A rank that is late, has ended, or made another call is an
error on every rank: `opforge.errors.GroupError`. No call holds the interpreter's lock while it waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.foundation import lazy

if TYPE_CHECKING:
    from .group import Group
    from .names import BACKEND
    from .registration import register

__all__ = ["BACKEND", "Group", "register"]

_MODULES = {"BACKEND": "names", "Group": "group", "register": "registration"}
__getattr__, __dir__ = lazy.names(__name__, _MODULES)
