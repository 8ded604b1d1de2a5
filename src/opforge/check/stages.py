"""What is done with one op, in a process of its own: load it, call it, compare it, measure it."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

from opforge.accelerator.entry_points import entry_points
from opforge.accelerator.interface.accelerator import Accelerator, target_for
from opforge.accelerator.interface.builder_protocol import create
from opforge.bench import machine
from opforge.builders.base import OpBuilder
from opforge.ops.cases import CASES, OURS, Case, MissingError, Place, load_cases
from opforge.ops.cases.memory import COPY
from opforge.report.ops import OfferedOp, readiness
from opforge.testing.checks import CHECKS, GROUP

Say = Callable[..., None]
"""Reports what is known so far, by keywords: the fields of `Checked`."""
SAMPLE_SECONDS, ROUNDS = 0.02, 5
"""How long the calls of a sample take together, and how many samples of the op and of a copy are taken by turns."""
UNCHECKED = "it has no reference: it was loaded, and compared with nothing"


def prepare(offer: OfferedOp, say: Say) -> None:
    """Builds an op, if it is usable here and was not built yet. Raises what its build raises."""
    ready = readiness(offer)
    say(target=ready.target)
    if ready.state == "unusable":
        say(state="unusable", reason="; ".join(ready.reasons))
        return
    say(stage="build")
    builder = builder_of(offer)
    if isinstance(builder, OpBuilder):
        say(library=builder.build().library)


def builder_of(offer: OfferedOp) -> Any:
    """Returns the builder of an op for the devices that are here."""
    builder_class = offer.builder_class()
    return create(builder_class, target_for(builder_class, offer.accelerator.target()))


def check_op(offer: OfferedOp, say: Say) -> None:
    """Loads an op and checks it. Raises AssertionError for what is wrong, and whatever the op raises."""
    name, accelerator, builder = offer.name, offer.accelerator, builder_of(offer)
    say(stage="load")
    began = time.perf_counter()
    loaded = builder.load()
    say(load_ms=_milliseconds(began), origin=getattr(loaded, "origin", ""), stage="first launch")
    device = accelerator.name
    say(device=machine.device_name(device))
    with ExitStack() as stack:
        case = case_of(name, device)
        calls = _calls(case, device, stack, say) if case else {}
        if calls:
            began = time.perf_counter()
            calls[OURS]()
            accelerator.synchronize()
            say(first_ms=_milliseconds(began))
        compare(name, loaded, device, say)
        if case and calls:
            say(stage="speed")
            _measure(case, calls, accelerator, say)


def compare(name: str, loaded: Any, device: str, say: Say) -> None:
    """Compares what was loaded with its reference, by the check of this name. Raises AssertionError."""
    contract = contract_of(name)
    if contract is None:
        say(state="unchecked", reason=UNCHECKED)
        return
    say(stage="reference")
    checked = contract.of(loaded, device)
    skipped = checked.check()
    say(tests=len(checked.names()) - len(skipped), state="ok")


def check_accelerator(accelerator: Accelerator, say: Say) -> None:
    """Runs the contract of accelerators. Raises AssertionError."""
    from opforge.testing import AcceleratorContract

    say(target=str(accelerator.target()), stage="contract")

    def make_accelerator(_self: Any) -> Accelerator:
        return accelerator

    say(device=machine.device_name(accelerator.name))
    contract: Any = type("Contract", (AcceleratorContract,), {"make_accelerator": make_accelerator})
    skipped = contract.check()
    say(tests=len(contract.names()) - len(skipped), state="ok")


def contract_of(name: str) -> Any:
    """Returns the class of contracts for a builder, or for a kernel package, ORG/NAME; None if there is none.

    Raises whatever its import raises.
    """
    paths = {point.name: point.value for point in entry_points(GROUP)} | CHECKS
    if name not in paths:
        return None
    module, _, attribute = paths[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def case_of(name: str, device: str) -> Case | None:
    """Returns the case of an op that is measured: one that moves memory, if it has such a one. None if it has none."""
    cases = [case for case in load_cases(CASES[name]) if device in case.devices] if name in CASES else []
    moving = [case for case in cases if case.unit == "GB/s" and COPY in case.contenders]
    return next(iter(moving or cases), None)


def _calls(case: Case, device: str, stack: ExitStack, say: Say) -> dict[str, Callable[[], object]]:
    """Returns the op's call and the copy's; nothing if the op's cannot be prepared here, with the reason as a note."""
    folder = stack.enter_context(TemporaryDirectory(prefix="opforge-check-"))
    place = Place(_size(case), case.dtypes[0], device, folder, True, stack)
    try:
        inputs = case.setup(place)
        return {name: case.contenders[name](inputs) for name in (OURS, COPY) if name in case.contenders}
    except MissingError as error:
        say(note=str(error))
        return {}


def _size(case: Case) -> int:
    sizes = case.quick_sizes() or case.sizes[:1]
    return sizes[-1]


def _measure(case: Case, calls: dict[str, Callable[[], object]], accelerator: Accelerator, say: Say) -> None:
    """Measures the op beside a copy of as many bytes, by turns; the best of each counts."""
    import torch

    best = dict.fromkeys(calls, float("inf"))
    for _round in range(ROUNDS):
        for name, call in calls.items():
            best[name] = min(best[name], _seconds(call, accelerator))
    say(us=round(1e6 * best[OURS], 1))
    if case.unit == "GB/s":
        moved = case.amount(_size(case), getattr(torch, case.dtypes[0]).itemsize)
        say(gb_per_s=round(moved / best[OURS] / 1e9, 2))
        if COPY in best:
            say(of_copy=round(best[COPY] / best[OURS], 2))


def _seconds(call: Callable[[], object], accelerator: Accelerator) -> float:
    """Returns the seconds of a call, the mean of as many as fit into SAMPLE_SECONDS."""
    count, began = 0, time.perf_counter()
    while True:
        call()
        count += 1
        if time.perf_counter() - began > SAMPLE_SECONDS:
            accelerator.synchronize()
            return (time.perf_counter() - began) / count


def _milliseconds(began: float) -> float:
    return round(1e3 * (time.perf_counter() - began), 1)
