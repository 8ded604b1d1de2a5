"""The answer to "can this op be used here?": true or false, with its reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opforge import settings
from opforge.cache.current import current_store
from opforge.errors import (
    BuildResourceError,
    CacheDirError,
    OpIncompatibleError,
    SourceNotFoundError,
    ToolchainError,
    ToolchainNotFoundError,
)

from .host_requirements import cpu_objection

if TYPE_CHECKING:
    from opforge.accelerator.capabilities import Capabilities
    from opforge.accelerator.target import Target
    from opforge.builders.base import OpBuilder


class Compatibility(NamedTuple):
    """True where there is no reason against. Use it as a bool, print it for the reasons."""

    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        return "; ".join(self.reasons) or "compatible"


def obstacles(builder: OpBuilder) -> list[str]:
    """Every reason why the builder's `load()` would fail here. Looks for what is built, and builds nothing."""
    reasons = [*builder.objections()]
    if reasons:
        return reasons
    try:
        if builder.find() is None:
            reasons += _build_objections(builder)
            if settings.prebuilt() == "require":
                reasons.append("nothing that is built fits, and OPFORGE_PREBUILT=require forbids to build it")
    except OpIncompatibleError as error:
        reasons += error.reasons
    except (BuildResourceError, CacheDirError, SourceNotFoundError, ToolchainError) as error:
        reasons.append(str(error))
    return reasons


def _build_objections(builder: OpBuilder) -> list[str]:
    try:
        objection = builder.toolchain(current_store()).objection(builder.target.device, builder.target.arch)
    except ToolchainNotFoundError as error:
        return [str(error)]
    return [objection] if objection else []


def target_objections(target: Target, abi: str) -> list[str]:
    """Reasons why code for this target does not run, or cannot be loaded, on this machine."""
    if target.device == "cpu":
        objection = cpu_objection(target.arch)
        return [objection] if objection else []
    from .device_requirements import cannot_load

    return cannot_load(target, abi)


def capabilities_for(target: Target, asked_by: str) -> Capabilities:
    """What a builder's `gate` is shown: an op for the host is offered under every accelerator, and asks the host."""
    from opforge.accelerator.registry import make_accelerator
    from opforge.accelerator.select import get_accelerator

    active = get_accelerator()
    elsewhere = target.device == "cpu" and active.target().device != "cpu"
    return (make_accelerator("cpu", asked_by) if elsewhere else active).capabilities()
