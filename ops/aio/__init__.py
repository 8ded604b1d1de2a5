"""Tensors to and from files, asynchronously: `read` and `write` return futures.

    from opforge.ops import aio

    future = aio.read("weights.bin", tensor)      # returns at once
    future.result()                               # waits; or `await future`
    aio.write(["a.bin", "b.bin"], [a, b]).result()

They use one queue of this process, whose engine is chosen by trying: io_uring, then libaio, then threads. A `Queue` of
your own has other options. No call holds the interpreter's lock while it waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.foundation import lazy

if TYPE_CHECKING:
    from .future import Future
    from .queue import Queue, read, report, write

__all__ = ["Future", "Queue", "read", "report", "write"]

_MODULES = {"Future": "future", "Queue": "queue", "read": "queue", "report": "queue", "write": "queue"}
__getattr__, __dir__ = lazy.names(__name__, _MODULES)
