"""Checks one op, in a process of its own: loads it, calls it, compares its results and measures it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

from opforge.accelerator.entry_points import entry_points
from opforge.accelerator.interface.accelerator import Accelerator, target_for
from opforge.accelerator.interface.builder_protocol import create
from opforge.bench import machine
from opforge.builders.base import OpBuilder
from opforge.ops.cases import GROUP, OURS, Case, MissingError, Place, Promise, cases_of, load_cases
from opforge.ops.cases.memory import COPY
from opforge.report.ops import OfferedOp, readiness

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
    accelerator, builder = offer.accelerator, builder_of(offer)
    cases = cases_of(offer.builder_class()) or cases_of_package(offer.name)
    say(stage="load")
    began = time.perf_counter()
    loaded = builder.load()
    say(load_ms=_milliseconds(began), origin=getattr(loaded, "origin", ""), stage="first launch")
    device = accelerator.name
    say(device=machine.device_name(device))
    with ExitStack() as stack:
        case = timed_case(cases, device)
        calls = _calls(case, loaded, device, stack, say) if case else {}
        if calls:
            began = time.perf_counter()
            calls[OURS]()
            accelerator.synchronize()
            say(first_ms=_milliseconds(began))
        compare(cases, loaded, device, say)
        if case and calls:
            say(stage="speed")
            _measure(case, calls, accelerator, say)


def compare(cases: Sequence[Case], loaded: Any, device: str, say: Say) -> None:
    """Compares what was loaded with what its cases say, by the contract of ops. Raises AssertionError."""
    if not any(case.reference or case.checks for case in cases):
        say(state="unchecked", reason=UNCHECKED)
        return
    from opforge.testing import OpContract, comparison

    say(stage="reference")
    checked = OpContract.of(cases, loaded, device)
    skipped = checked.check()
    compared = [case for case in cases if case.reference]
    promises = [promise for promise in Promise if compared and all(promise in case.promises for case in compared)]
    errors = [comparison.largest_error(case, loaded, device) for case in compared if Promise.ACCURACY in case.promises]
    if errors:
        worst = max(errors)
        say(error_units=round(worst.ours, 2), eager_units=round(worst.eager, 2))
    say(tests=len(checked.names()) - len(skipped), promises=[str(promise) for promise in promises], state="ok")


def check_accelerator(accelerator: Accelerator, say: Say) -> None:
    """Runs the contract of accelerators. Raises AssertionError."""
    from opforge.accelerator.select import whole
    from opforge.testing import AcceleratorContract

    accelerator = whole(accelerator)  # the contract counts calls and looks at the class: not those of a stand-in
    say(target=str(accelerator.target()), stage="contract")

    def make_accelerator(_self: Any) -> Accelerator:
        return accelerator

    say(device=machine.device_name(accelerator.name))
    contract: Any = type("Contract", (AcceleratorContract,), {"make_accelerator": make_accelerator})
    skipped = contract.check()
    say(tests=len(contract.names()) - len(skipped), state="ok")


def cases_of_package(name: str) -> tuple[Case, ...]:
    """Returns the cases that an entry point names for a kernel package, ORG/NAME, or for a builder; none without one.

    Raises whatever their import raises.
    """
    paths = {point.name: point.value for point in entry_points(GROUP)}
    return load_cases(paths[name]) if name in paths else ()


def timed_case(cases: Sequence[Case], device: str) -> Case | None:
    """Returns the case that is measured: one that moves memory, if there is such a one. None if none is timed."""
    timed = [case for case in cases if case.sizes and device in case.devices]
    moving = [case for case in timed if case.unit == "GB/s" and COPY in case.rivals]
    return next(iter(moving or timed), None)


def _calls(case: Case, loaded: Any, device: str, stack: ExitStack, say: Say) -> dict[str, Callable[[], object]]:
    """Returns the op's call and the copy's; nothing if the op's cannot be prepared here, with the reason as a note."""
    folder = stack.enter_context(TemporaryDirectory(prefix="opforge-check-"))
    place = Place(_size(case), case.measured_dtypes[0], device, folder, True, stack)
    try:
        inputs = case.prepare(place, loaded)
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
        moved = case.amount(_size(case), getattr(torch, case.measured_dtypes[0]).itemsize)
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
