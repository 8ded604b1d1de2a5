"""How the ranks of a group find each other: through a store of torch.distributed, once.

Rank 0 makes the memory, which has no name in a file system. The others open it as a descriptor of rank 0's process, in
/proc. So nothing is left behind, whenever a process is killed, and nobody else can take the name.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import time
from datetime import timedelta
from typing import Any

from opforge.errors import GroupError

from . import failure

KEY = "opforge_shm"


class Rendezvous:
    """One rank's part in making a group."""

    def __init__(self, op: Any, store: Any, rank: int, size: int, timeout: float) -> None:
        self._op, self._store, self._rank, self._size, self._timeout = op, store, rank, size, timeout
        self._deadline = time.monotonic() + timeout

    def attach(self) -> int:
        """Returns the handle of the group, to which all ranks have attached.

        Raises GroupError, also if the ranks are not on one host.
        """
        try:
            self._set(f"{KEY}/{self._rank}", {**_this_process(), "start": self._op.shm_start_time(os.getpid())})
            handle = self._make() if self._rank == 0 else self._open()
        except OSError as error:
            raise self._error("setup", None, f"the shared memory cannot be used: {error}", SETUP) from error
        if code := self._op.shm_join(handle, max(0.0, self._deadline - time.monotonic())):
            problem = failure.error(self._op, handle, self._rank, self._size, self._timeout)
            self._op.shm_delete(handle)
            raise problem if code == failure.FAILED else self._error("setup", None, os.strerror(code), SETUP)
        return handle

    def forget(self) -> None:
        """Removes this rank's keys from the store, so that a group can be made with the same store again."""
        names = [f"{KEY}/{self._rank}", *([f"{KEY}/memory"] if self._rank == 0 else [])]
        for name in names:
            try:
                self._store.delete_key(name)
            except (RuntimeError, NotImplementedError):  # a store that cannot; it is new for each group then
                return

    def _make(self) -> int:
        try:
            ranks = [self._get(f"{KEY}/{rank}", rank) for rank in range(self._size)]
            self._check_places(ranks)
        except GroupError as error:
            self._set(f"{KEY}/memory", {"reason": error.reason, "about": error.about, "problem": error.problem})
            raise
        token, descriptor = secrets.randbits(64), ctypes.c_int(-1)
        processes = (ctypes.c_uint32 * self._size)(*(rank["process"] for rank in ranks))
        started = (ctypes.c_uint64 * self._size)(*(rank["start"] for rank in ranks))
        try:
            _check(self._op.shm_create(self._size, token, processes, started, ctypes.byref(descriptor)))
            handle = self._map(descriptor.value, token)
        except OSError as error:
            problem = f"the shared memory cannot be used: {error}"
            self._set(f"{KEY}/memory", {"reason": "setup", "about": 0, "problem": problem})
            if descriptor.value >= 0:
                os.close(descriptor.value)
            raise
        # The descriptor is open until all have attached; `close_descriptor` ends that.
        self.descriptor: int | None = descriptor.value
        start = ranks[0]["start"]
        memory = {"process": os.getpid(), "start": start, "descriptor": descriptor.value, "token": token}
        self._set(f"{KEY}/memory", memory)
        return handle

    def _open(self) -> int:
        memory = self._get(f"{KEY}/memory", 0)
        if "problem" in memory:
            advice = ELSEWHERE if memory["reason"] == "elsewhere" else SETUP
            raise self._error(memory["reason"], memory["about"], memory["problem"], advice)
        process = memory["process"]
        try:
            descriptor = os.open(f"/proc/{process}/fd/{memory['descriptor']}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if self._op.shm_start_time(process) == memory["start"]:
                raise
            problem = f"rank 0 (process {process}) has ended during the group's creation"
            raise self._error("ended", 0, problem, f"See why it ended. {failure.AGAIN}") from error
        try:
            return self._map(descriptor, memory["token"])
        finally:
            os.close(descriptor)

    def _map(self, descriptor: int, token: int) -> int:
        handle = ctypes.c_void_p()
        _check(self._op.shm_attach(descriptor, self._size, self._rank, token, ctypes.byref(handle)))
        return handle.value or 0

    def close_descriptor(self) -> None:
        """Closes rank 0's descriptor of the memory, after all have attached or the creation failed."""
        descriptor, self.descriptor = getattr(self, "descriptor", None), None
        if descriptor is not None:
            os.close(descriptor)

    def _check_places(self, ranks: list[dict[str, Any]]) -> None:
        for name, place in PLACES.items():
            for rank, process in enumerate(ranks):
                if process[name] != ranks[0][name]:
                    raise self._error("elsewhere", rank, f"rank {rank} is {place} than rank 0", ELSEWHERE)

    def _set(self, name: str, value: dict[str, Any]) -> None:
        self._store.set(name, json.dumps(value))

    def _get(self, name: str, rank: int) -> dict[str, Any]:
        left = max(0.001, self._deadline - time.monotonic())
        try:
            self._store.wait([name], timedelta(seconds=left))
            value: dict[str, Any] = json.loads(self._store.get(name))
        except RuntimeError as error:  # torch's errors of stores
            if time.monotonic() < self._deadline:
                raise self._error("setup", None, f"the store of the group failed: {error}", STORE) from error
            problem = f"rank {rank} did not come to the group's creation within {self._timeout:g} seconds"
            advice = "Find out what that rank waits for, or raise the group's timeout"
            raise self._error("late", rank, problem, advice) from error
        return value

    def _error(self, reason: str, about: int | None, problem: str, advice: str) -> GroupError:
        return GroupError(self._rank, self._size, reason, about, problem, advice)


PLACES = {"host": "on another host", "namespace": "in another container (PID namespace)", "user": "of another user"}
"""Values that must be the same for all ranks, each with the meaning of a difference."""
ELSEWHERE = 'Use "gloo" for ranks of several hosts, and a group of this backend for those of each host'
STORE = "It is in the process of rank 0, or where MASTER_ADDR says: see whether that has ended"
SETUP = "It needs Linux with /proc, memfd_create, and memory for the ranks"


def _this_process() -> dict[str, Any]:
    with open("/proc/sys/kernel/random/boot_id") as file:
        host = file.read().strip()
    return {
        "host": host,
        "namespace": os.readlink("/proc/self/ns/pid"),
        "user": os.getuid(),
        "process": os.getpid(),
    }


def _check(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))
