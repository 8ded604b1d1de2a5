"""The builder of the op by which the processes of a host exchange tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from ctypes import POINTER, c_double, c_int, c_int64, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING

from opforge.builders.base import OpBuilder

if TYPE_CHECKING:
    from opforge.accelerator.capabilities import Capabilities

_LIST = POINTER(c_void_p)
_SIZES = POINTER(c_uint64)


class ShareMemCommBuilder(OpBuilder):
    """Collectives and messages through shared memory: initialize, vector_kernel_level.

    See opforge.ops.shm for the functions, ops/csrc/shm/shm.cpp for the code that they call.
    """

    name = "shm_comm"
    abi = "c"
    sources = [
        "shm/shm.cpp",
        "shm/tuned.cpp",
        "shm/group.cpp",
        "shm/collectives.cpp",
        "shm/messages.cpp",
        "shm/reduce_floats.cpp",
        "shm/reduce_integers.cpp",
    ]
    # Before chunks become larger than 256 KiB, a tensor goes in so many: ops/csrc/shm/collectives.cpp.
    tunable = {"parts": (2, 4, 8, 16, 32)}
    python_functions = "opforge.ops.shm.inference:functions"
    signatures = {
        "shm_most_ranks": (c_uint32, []),
        "shm_rank_bytes": (c_int64, [c_uint32]),
        "shm_vector_level": (c_int, []),
        "shm_start_time": (c_uint64, [c_uint32]),
        "shm_create": (c_int, [c_uint32, c_uint64, POINTER(c_uint32), POINTER(c_uint64), POINTER(c_int)]),
        "shm_attach": (c_int, [c_int, c_uint32, c_uint32, c_uint64, POINTER(c_void_p)]),
        "shm_join": (c_int, [c_void_p, c_double]),
        "shm_close": (None, [c_void_p]),
        "shm_delete": (None, [c_void_p]),
        "shm_failure": (c_int, [c_void_p, c_void_p]),
        "shm_reduces": (c_int, [c_uint32, c_uint32]),
        "shm_barrier": (c_int, [c_void_p, c_double]),
        "shm_all_reduce": (c_int, [c_void_p, c_void_p, c_uint64, c_uint32, c_uint32, c_double]),
        "shm_reduce_scatter": (c_int, [c_void_p, _LIST, c_void_p, c_uint64, c_uint32, c_uint32, c_double]),
        "shm_all_gather": (c_int, [c_void_p, c_void_p, _LIST, c_uint64, c_uint32, c_double]),
        "shm_broadcast": (c_int, [c_void_p, c_void_p, c_uint64, c_uint32, c_uint32, c_double]),
        "shm_all_to_all": (c_int, [c_void_p, _LIST, _SIZES, _LIST, _SIZES, c_uint32, c_double]),
        "shm_send": (c_int, [c_void_p, c_void_p, c_uint64, c_uint32, c_uint32, c_uint64, c_double]),
        "shm_receive": (c_int, [c_void_p, c_void_p, c_uint64, c_uint32, c_uint32, c_uint64, c_double]),
        "shm_receive_any": (c_int, [c_void_p, c_void_p, c_uint64, c_uint32, c_uint64, POINTER(c_uint32), c_double]),
    }

    def gate(self, capabilities: Capabilities) -> Iterable[str]:
        """Returns that it needs Linux on any other system."""
        return () if sys.platform == "linux" else ("it needs Linux: memfd_create, futex and /proc",)
