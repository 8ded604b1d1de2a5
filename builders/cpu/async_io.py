"""The builder of the ops that move tensors to and from files."""

from __future__ import annotations

from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_void_p

from opforge.builders.base import OpBuilder


class AsyncIOBuilder(OpBuilder):
    """Asynchronous reads and writes: aio_handle, aio_read, aio_write, deepspeed_memcpy.

    See opforge.ops.aio for the functions, ops/csrc/aio/aio.cpp for the code that they call.
    """

    name = "async_io"
    abi = "c"
    sources = [
        "aio/aio.cpp",
        "aio/queue.cpp",
        "aio/worker.cpp",
        "aio/request.cpp",
        "aio/file.cpp",
        "aio/uring.cpp",
        "aio/registered.cpp",
        "aio/libaio.cpp",
        "aio/threads.cpp",
        "pinned/locked.cpp",
    ]
    extra_compile_args = ["-pthread"]
    extra_link_args = ["-pthread"]
    libraries = ["dl"]
    python_functions = "opforge.ops.aio.handle:functions"
    signatures = {
        "aio_start": (c_void_p, [c_char_p, c_int64, c_int64, c_int64, c_int, c_char_p, c_int64]),
        "aio_stop": (None, [c_void_p]),
        "aio_delete": (None, [c_void_p]),
        "aio_submit": (
            c_void_p,
            [
                *(c_void_p, c_int, c_char_p, c_int, c_void_p, c_int64, c_int64, c_void_p, c_int64),
                *(c_int64, c_void_p, c_int64, POINTER(c_int)),
            ],
        ),
        "aio_wait": (c_int, [c_void_p, c_void_p, c_double]),
        "aio_cancel": (None, [c_void_p, c_void_p]),
        "aio_outcome": (c_int, [c_void_p, POINTER(c_int64), POINTER(c_int64)]),
        "aio_finished": (c_int64, [c_void_p, c_void_p, c_int64]),
        "aio_release": (None, [c_void_p]),
        "aio_forget": (None, [c_void_p, c_int64]),
        "aio_registered": (c_int64, [c_void_p, POINTER(c_int)]),
        "pin_lock": (c_int, [c_void_p, c_int64]),
        "pin_unlock": (c_int, [c_void_p, c_int64]),
    }
