"""Every accelerator that could be in use here, each with why it can be used or not. For `opforge report`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .select import BUILT_IN, NEVER_PICKED, attempt, external


@dataclass(frozen=True)
class Candidate:
    """One accelerator that selection looks at, in the order in which it looks."""

    name: str
    available: bool
    """Whether it can be used here when it is chosen by name."""
    reason: str
    """Why it is rejected; what is to be said of it where it is not."""
    source: str
    """Who provides it: `opforge`, a distribution's name and version, or `torch` for a device without a class."""


def candidates() -> tuple[Candidate, ...]:
    """Give every accelerator that could be in use here, in the order of choice, each with its reason.

    Devices that torch sees but no accelerator serves are listed too, rejected.
    """
    added = [_tried(*one) for one in external()]
    own = [_tried(name, place, "opforge") for name, place in BUILT_IN.items()]
    return (*added, *torch_only(frozenset(one.name for one in (*added, *own))), *own)


def _tried(name: str, place: str, source: str) -> Candidate:
    made, reason, _problem = attempt(name, place, source)
    remark = "runs nothing: used only when it is named" if name in NEVER_PICKED else "available"
    return Candidate(name, made is not None, reason or remark, source)


def torch_only(known: frozenset[str]) -> tuple[Candidate, ...]:
    """Give the devices that torch has a name for and none of the `known` accelerators serves."""
    try:
        import torch
    except ImportError:
        return ()  # then no device is seen by it

    names = ["cuda", "xpu", "mtia", "mps"]
    other = torch._C._get_privateuse1_backend_name()
    if other != "privateuseone":  # torch's own placeholder: no vendor has taken the name
        names.append(other)
    return tuple(Candidate(name, False, _why_not(name), "torch") for name in names if name not in known)


def _why_not(name: str) -> str:
    import torch

    missing = f"no accelerator class for {name!r} is installed"
    try:
        module: Any = torch.get_device_module(name)
        seen = bool(module.is_available())
        count = int(module.device_count()) if seen else 0
    except (AttributeError, RuntimeError) as problem:
        return f"{missing}, and torch cannot tell whether there is such a device: {problem}"
    if seen:
        return f"torch sees {count} {name} device{'' if count == 1 else 's'}, but {missing}"
    return f"{missing}, and torch.{name}.is_available() is False"
