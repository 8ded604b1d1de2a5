"""Every accelerator that could be in use on this machine, each with its reason. `opforge report` shows them."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from . import registry
from .entry_points import entry_points
from .interface import external_builders

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .entry_points import EntryPoint


@dataclass(frozen=True)
class Candidate:
    """One accelerator that could be chosen."""

    name: str
    available: bool
    """Whether it can be used on this machine if it is named."""
    reason: str
    """Why it cannot be used; a remark if it can."""
    source: str
    """Its provider: `opforge`, a distribution's name and version, or `torch` for a device without an accelerator."""
    broken: bool = False
    """Whether the package that provides it is at fault, and not this machine."""


def candidates() -> tuple[Candidate, ...]:
    """Returns every accelerator that could be in use on this machine, in the order of choice, each with its reason.

    Devices that torch knows and no accelerator serves are included, as unavailable ones.
    """
    external = [_candidate(point) for point in registry.external()]
    built_in = [_candidate(point) for point in registry.built_in()]
    names = frozenset(candidate.name for candidate in (*external, *built_in))
    return (*external, *torch_only(names), *built_in)


def _candidate(point: EntryPoint) -> Candidate:
    accelerator, reason, error = registry.make(point)
    broken = accelerator is None
    if accelerator is not None:
        accelerator, reason, error = registry.probed(accelerator, point)
        broken = error is not None
    remark = "runs nothing: used only by name" if point.name in registry.ONLY_BY_NAME else "available"
    return Candidate(point.name, accelerator is not None, reason or remark, point.source, broken)


def entry_point_problems(listed: Iterable[Candidate]) -> list[str]:
    """Returns a sentence for each entry point that adds nothing, whatever is on this machine.

    These are the accelerators in `listed` that cannot be made or probed, and op builders that other packages add to an
    accelerator that does not exist.
    """
    advice = "Fix that package, or uninstall it."
    broken = [candidate for candidate in listed if candidate.broken]
    problems = [f"the accelerator {item.name} is ignored: {item.reason.rstrip('.')}. {advice}" for item in broken]
    names = [point.name for point in (*registry.built_in(), *registry.external())]
    for point in entry_points(external_builders.GROUP):
        owner, _, class_name = point.name.partition(".")
        if class_name.isidentifier() and owner not in names:  # other names are each accelerator's to refuse
            near = get_close_matches(owner.lower(), names, n=1)
            advice = f"Did you mean {near[0]!r}?" if near else "Install the package that adds it."
            label = f"the op builder {point.name} of {point.source}"
            problems.append(f"{label} is ignored: there is no accelerator {owner!r}. {advice}")
    return problems


def torch_only(served: frozenset[str]) -> tuple[Candidate, ...]:
    """Returns the devices that torch has a name for, except those in `served`. None if torch is not installed."""
    try:
        import torch
    except ImportError:
        return ()

    names = ["cuda", "xpu", "mtia", "mps"]
    private = torch._C._get_privateuse1_backend_name()
    if private != "privateuseone":  # torch's placeholder, until a vendor renames it
        names.append(private)
    return tuple(Candidate(name, False, _torch_reason(name), "torch") for name in names if name not in served)


def _torch_reason(name: str) -> str:
    """Returns torch's report on a device that no accelerator serves."""
    import torch

    missing = f"no accelerator class for {name!r} is installed"
    try:
        module: Any = torch.get_device_module(name)
        available = bool(module.is_available())
        count = int(module.device_count()) if available else 0
    except (AttributeError, RuntimeError) as error:
        return f"{missing}, and torch cannot report whether there is such a device: {error}"
    if available:
        return f"torch sees {count} {name} device{'' if count == 1 else 's'}, but {missing}"
    return f"{missing}, and torch.{name}.is_available() is False"
