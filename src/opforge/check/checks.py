"""Checks every op that is usable here, and remembers what was checked on which device."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import opforge
from opforge import machine_folder, memory
from opforge.report.ops import OfferedOp, offers, readiness

from . import own_process, stages

MOST_SECONDS = 110.0
"""How long the checks of a run may take together; what needs a build is built before. An op that is left is named."""
ACCELERATOR = "accelerator"
BAD = ("failed", "crashed")
"""The states that make the exit code 1."""


class Checked(NamedTuple):
    """What was found out about an op on a device."""

    name: str
    """The builder's class, or `accelerator` for the contract of the accelerator itself."""
    accelerator: str
    target: str = ""
    state: str = ""
    """ok; unchecked (it is loaded, and there is no reference); failed; crashed; unusable; skipped."""
    stage: str = ""
    """Where it failed or crashed: build, load, first launch, reference, speed, contract."""
    reason: str = ""
    printed: str = ""
    """The last line that the process printed before it failed."""
    note: str = ""
    """Why there is no speed."""
    tests: int = 0
    """How many tests of the contract have passed."""
    load_ms: float | None = None
    first_ms: float | None = None
    us: float | None = None
    """Microseconds of a call."""
    gb_per_s: float | None = None
    of_copy: float | None = None
    """How many times as fast as a copy of as many bytes it is."""
    seconds: float = 0.0
    origin: str = ""
    """Where the op's library came from."""
    library: str = ""
    """The op's library; empty if it has none."""
    device: str = ""
    """The name of the device, or of the processor."""


def run(
    names: Sequence[str], devices: Iterable[str], timeout: float, ended: Callable[[Checked], None]
) -> list[Checked]:
    """Checks the accelerators and their ops, or the ops of these names. Returns all in order.

    Args:
        names: Builders, in any letter case, with or without "Builder"; empty for all, and for the accelerators.
        devices: The accelerators; by default the one in use, then the CPU.
        timeout: Seconds that one op may take.
        ended: Is called as soon as one was checked.

    Raises:
        OpNotFoundError: There is no op of a name.
    """
    import torch  # noqa: F401  # the children inherit it, and need not import it themselves

    offered = selected(names, devices)
    # Before the clock runs. In children too: what a fork inherits of an opened device is unusable.
    rows = [_prepared(offer) for offer in offered]
    accelerators = {} if names else {offer.accelerator.name: offer.accelerator for offer in offered}
    began, results = time.monotonic(), list[Checked]()

    def left() -> float:
        return began + MOST_SECONDS - time.monotonic()

    for accelerator in accelerators.values():
        work = functools.partial(stages.check_accelerator, accelerator)
        results.append(_outcome(Checked(ACCELERATOR, accelerator.name), own_process.run(work, min(timeout, left()))))
        ended(results[-1])
    for offer, row in zip(offered, rows, strict=True):
        if not row.state and left() <= 0 and not names:
            text = f"the {MOST_SECONDS:.0f} s of a run were over: check it with: opforge check {offer.name}"
            row = row._replace(state="skipped", reason=text)
        elif not row.state:
            work = functools.partial(stages.check_op, offer)
            row = _outcome(row, own_process.run(work, timeout if names else min(timeout, left())))
            _remember(row)
        results.append(row)
        ended(row)
    return results


def selected(names: Sequence[str], devices: Iterable[str]) -> list[OfferedOp]:
    """Returns the ops of these names, or all. Raises OpNotFoundError."""
    from opforge.errors import OpNotFoundError

    offered = offers(devices)
    if not names:
        return offered
    wanted = {_plain(name): name for name in names}
    for plain, name in wanted.items():
        if plain not in {_plain(offer.name) for offer in offered}:
            accelerator = offered[0].accelerator.name if offered else "cpu"
            raise OpNotFoundError(name, accelerator, dict.fromkeys((offer.name for offer in offered), "offered"))
    return [offer for offer in offered if _plain(offer.name) in wanted]


def _plain(name: str) -> str:
    return name.lower().replace("_", "").removesuffix("builder")


def _prepared(offer: OfferedOp) -> Checked:
    """Returns the row of an op after it was built; it has a state if it cannot be checked."""
    work = functools.partial(stages.prepare, offer)
    return _outcome(Checked(offer.name, offer.accelerator.name), own_process.run(work, math.inf))


def _outcome(row: Checked, ended: own_process.Ended) -> Checked:
    known = {name: value for name, value in ended.said.items() if name in Checked._fields}
    row = row._replace(**known, seconds=ended.seconds)
    if ended.problem:
        state = "failed" if "error" in ended.said else "crashed"
        return row._replace(state=state, reason=ended.problem, printed=ended.printed)
    return row._replace(stage="")


def _remember(row: Checked) -> None:
    """Remembers the outcome as long as the op's library is the same."""
    if row.library:
        value = {"state": row.state, "at": int(time.time()), "device": row.device, "by": opforge.__version__}
        machine_folder.remember(_memory_name(row.name, row.target, row.library), memory.FlatStamps([], []), value)


def last(offer: OfferedOp) -> Mapping[str, Any]:
    """Returns when, on which device and with which outcome the op's library was last checked; empty if never."""
    ready = readiness(offer)
    library = ready.path if ready.state in ("ready", "cached") else ""
    found = memory.recall(_memory_name(offer.name, ready.target, library)) if library else None
    return found[0] if found and isinstance(found[0], dict) else {}


def _memory_name(name: str, target: str, library: str) -> str:
    return memory.name_of(("checked", name, target, library))  # the path has digits of the library's digest
