"""Whether a prebuilt entry can be used for a spec on this machine, judged from its record alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from opforge import settings
from opforge.builders.spec import abi
from opforge.builders.spec.user_flags import user_flags
from opforge.cache.store import Fit

from .host_requirements import host_problem

if TYPE_CHECKING:
    from opforge.builders.spec.op_spec import OpSpec

log = logging.getLogger("opforge")
_warned: set[str] = set()


def reset() -> None:
    """Forgets which entries were warned about."""
    _warned.clear()


def fit_of(spec: OpSpec, exact: bool) -> Callable[[Mapping[str, Any]], Fit]:
    """Returns the function that judges records: `exact` refuses another CPU level or architecture than the target's."""
    judge = _cpu_fit if spec.target.device == "cpu" else _device_fit

    def fit(record: Mapping[str, Any]) -> Fit:
        problem = entry_problem(record)
        if not problem and spec.portable and not record.get("portable"):
            problem = "it is not portable"
        problem = problem or flags_problem(spec.name, record)
        return Fit(problem) if problem else judge(spec, exact, record)

    return fit


def _cpu_fit(spec: OpSpec, exact: bool, record: Mapping[str, Any]) -> Fit:
    """Fits if it is built for the target or, unless `exact`, for a level below it; the highest level is the best."""
    from opforge.builders.spec.targets import lower_targets

    targets = [str(target) for target in ([spec.target] if exact else lower_targets(spec.target))]
    if record["target"] not in targets:
        return Fit(f"it is built for {record['target']}, not for {spec.target}")
    return Fit(rank=-targets.index(record["target"]))


def _device_fit(spec: OpSpec, exact: bool, record: Mapping[str, Any]) -> Fit:
    """Fits if its code runs on the devices here; the best is one that the driver need not compile any further."""
    from .device_requirements import device_problem

    if exact and record["target"] != str(spec.target):
        return Fit(f"it is built for {record['target']}, not for {spec.target}")
    problem = device_problem(record, spec.target.arch)
    return Fit(problem) if problem else Fit(rank=int(device_problem(record, spec.target.arch, jit=False) is None))


def entry_problem(record: Mapping[str, Any]) -> str | None:
    """Returns why an entry with this record cannot be loaded on this host, or None."""
    return host_problem(record) or abi.interface_problem(record, abi.LOADED_INTERFACES)


def flags_problem(op: str, record: Mapping[str, Any]) -> str | None:
    """Returns why the user's flags refuse an entry, or None.

    If no flags are set, the entry is used whatever flags its maker had. If OPFORGE_PREBUILT says "prefer" or "require",
    an entry with other flags is used too, and one warning says so.
    """
    here, there = user_flags(), record["user_flags"]
    names = [name for name in here if here[name] != there.get(name, "")]
    if not names:
        return None
    name = names[0]
    built = f"{name}={there[name]!r}" if name in there else f"no {name}"
    problem = f"it was built with {built}, and {name}={here[name]!r} is set here"
    if not settings.prefers_prebuilt():
        return f"{problem}: unset {name}, or set OPFORGE_PREBUILT=prefer to use it nevertheless"
    if op not in _warned:
        _warned.add(op)
        log.warning("%s: a prebuilt entry is used although %s (OPFORGE_PREBUILT=%s)", op, problem, settings.prebuilt())
    return None
