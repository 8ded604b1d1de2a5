"""Checks every op that is usable here, and records the result for each device."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.accelerator.entry_points import entry_points
from opforge.foundation import opforge_version, remembered_values, remembered_values_writer
from opforge.report.ops import OfferedOp, offers, own_offers, readiness

from . import kernels, own_process, stages
from .kernels import InstalledKernel

Work = Callable[[Callable[..., None]], None]
"""The work of a child process. Its argument is a function that reports values by name."""

MOST_SECONDS = 110.0
"""How long the checks of a run may take together; what needs a build is built before. An op that is left is named."""
ACCELERATOR = "accelerator"
BAD = ("failed", "crashed")
"""The states that make the exit code 1."""


class Checked(NamedTuple):
    """The result of checking an op on a device."""

    name: str
    """The builder's class, or package.module:Class of the user's own; ORG/NAME of an installed kernel package;
    `accelerator` for the contract of accelerators.
    """
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
    promises: Sequence[str] = ()
    """Promises that were tried and that all of its cases with a reference make."""
    error_units: float | None = None
    """The largest error of its results, in units of the op's conditioning."""
    eager_units: float | None = None
    """The error of torch's operators in the same dtype, in the same units."""
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
    package: str = ""
    """The installed package that has it, with its version; empty for opforge's own; the module of the user's own."""


def run(
    names: Sequence[str],
    devices: Iterable[str],
    timeout: float,
    ended: Callable[[Checked], None],
    own: Mapping[str, Any] | None = None,
    is_limited: bool = True,
) -> list[Checked]:
    """Checks the accelerators and their ops, or the ops of these names. Returns all in order.

    Args:
        names: Builders, in any letter case, with or without "Builder"; packages, whose builders or kernels are meant;
            empty for all, and for the accelerators.
        devices: The accelerators; by default the one in use, then the CPU.
        timeout: Seconds that one op may take.
        ended: Is called as soon as one was checked.
        own: A class of the user's own for each name that is package.module:Class.
        is_limited: Whether a run without names ends after MOST_SECONDS.

    Raises:
        OpNotFoundError: There is no op, and no package with ops, of a name.
        OpIncompatibleError: A class of the user's own is for none of the devices.
        KernelNotFoundError: No kernel package of a name, ORG/NAME, is installed.
    """
    import torch  # noqa: F401  # the children inherit it, and need not import it themselves

    offered, installed = selected(names, devices, own)
    # Before the clock runs. In children too: what a fork inherits of an opened device is unusable.
    packages = package_names()
    rows = [_prepared(offer, package_of(offer, packages)) for offer in offered]
    rows += [_prepared_kernel(kernel) for kernel in installed]
    accelerators = {} if names else {offer.accelerator.name: offer.accelerator for offer in offered}
    ends = time.monotonic() + MOST_SECONDS if is_limited and not names else math.inf
    results = list[Checked]()

    def left() -> float:
        return ends - time.monotonic()

    for accelerator in accelerators.values():
        work = functools.partial(stages.check_accelerator, accelerator)
        results.append(_outcome(Checked(ACCELERATOR, accelerator.name), own_process.run(work, min(timeout, left()))))
        ended(results[-1])
    works: list[Work] = [functools.partial(stages.check_op, offer) for offer in offered]
    works += [functools.partial(kernels.check_kernel, kernel) for kernel in installed]
    for check, row in zip(works, rows, strict=True):
        if not row.state:
            most = min(timeout, left())
            child = own_process.run(check, most) if most > 0 else None
            if child is None or (child.is_late and most < timeout):
                # The run was over, not the time that an op may take: nothing is known of this one.
                again = f"check it with: opforge check {row.name}, or all with: opforge check --all"
                text = f"the {MOST_SECONDS:.0f} s of a run were over: {again}"
                row = row._replace(state="skipped", reason=text)
            else:
                row = _outcome(row, child)
                _remember(row)
        results.append(row)
        ended(row)
    return results


def selected(
    names: Sequence[str], devices: Iterable[str], own: Mapping[str, Any] | None = None
) -> tuple[list[OfferedOp], list[InstalledKernel]]:
    """Returns the ops and the installed kernels of these names, or all. Raises what `run` raises for names."""
    from opforge.errors import OpNotFoundError

    classes = own or {}
    of_classes = [offer for name, builder in classes.items() for offer in own_offers(name, builder, devices)]
    of_packages = [name for name in names if "/" in name]
    installed = kernels.installed(of_packages) if of_packages or not names else []
    wanted = {_plain(name): name for name in names if "/" not in name and name not in classes}
    if names and not wanted:
        return of_classes, installed
    offered = offers(devices)
    packages = package_names()
    known = {
        offer.name: {_plain(offer.name), _plain(packages.get(offer.name, "").partition(" ")[0])} for offer in offered
    }
    for plain, name in wanted.items():
        if not plain or not any(plain in words for words in known.values()):
            accelerator = offered[0].accelerator.name if offered else "cpu"
            raise OpNotFoundError(name, accelerator, dict.fromkeys((offer.name for offer in offered), "offered"))
    return [offer for offer in offered if not names or known[offer.name] & wanted.keys()] + of_classes, installed


def package_names() -> dict[str, str]:
    """Returns the distribution, with its version, of each builder that is not opforge's own."""
    points = entry_points("opforge.op_builders")
    return {point.name.rpartition(".")[2]: point.source for point in points}


def package_of(offer: OfferedOp, packages: Mapping[str, str]) -> str:
    """Returns the distribution that has an op, by `package_names`; the module of a class of the user's own."""
    return packages.get(offer.name, "") if offer.own is None else offer.name.partition(":")[0]


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").removesuffix("builder")


def _prepared(offer: OfferedOp, package: str) -> Checked:
    """Returns the row of an op after it was built; it has a state if it cannot be checked."""
    work = functools.partial(stages.prepare, offer)
    return _outcome(Checked(offer.name, offer.accelerator.name, package=package), own_process.run(work, math.inf))


def _prepared_kernel(kernel: InstalledKernel) -> Checked:
    """Returns the row of an installed kernel; it has a state if it cannot be checked."""
    work = functools.partial(kernels.prepare, kernel)
    row = Checked(kernel.name, kernel.accelerator, kernel.label, package=kernel.package)
    return _outcome(row, own_process.run(work, math.inf))


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
        value = {"state": row.state, "at": int(time.time()), "device": row.device, "by": opforge_version.VERSION}
        remembered_values_writer.remember(
            _remembered_name(row.name, row.target, row.library), remembered_values.FlatStamps([], []), value
        )


def remembered(
    names: Sequence[str], devices: Iterable[str], own: Mapping[str, Any] | None = None
) -> list[tuple[Checked, Mapping[str, Any]]]:
    """Returns the row of each op and kernel, with when, on which device and with which outcome it was last checked.

    That is empty for what was never checked as it is now. Raises what `run` raises for names.
    """
    offered, installed = selected(names, devices, own)
    packages, rows = package_names(), list[Checked]()
    for offer in offered:
        ready = readiness(offer)
        library = ready.path if ready.state in ("ready", "cached") else ""
        package = package_of(offer, packages)
        rows.append(Checked(offer.name, offer.accelerator.name, ready.target, library=library, package=package))
    for kernel in installed:
        row = Checked(kernel.name, kernel.accelerator, kernel.label, package=kernel.package)
        rows.append(row._replace(library=kernel.variant.folder))
    return [(row, _last(row)) for row in rows]


def _last(row: Checked) -> Mapping[str, Any]:
    found = remembered_values.recall(_remembered_name(row.name, row.target, row.library)) if row.library else None
    return found[0] if found and isinstance(found[0], dict) else {}


def _remembered_name(name: str, target: str, library: str) -> str:
    return remembered_values.name_of(("checked", name, target, library))  # the path has digits of the library's digest
