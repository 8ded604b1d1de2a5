"""Whether an op can be used here: true or false, with the reasons."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge import settings
from opforge.builders import toolchains
from opforge.cache.current import current_store
from opforge.errors import (
    BuildResourceError,
    CacheDirError,
    OpIncompatibleError,
    SourceNotFoundError,
    ToolchainError,
    ToolchainNotFoundError,
)

from .finder import find, offered

if TYPE_CHECKING:
    from opforge.accelerator.capabilities import Capabilities
    from opforge.accelerator.target import Target
    from opforge.builders.declaration.op_spec import OpSpec


log = logging.getLogger("opforge")


class Compatibility(NamedTuple):
    """True if there is no reason against. Use it as a bool, print it for the reasons."""

    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        return "; ".join(self.reasons) or "compatible"


def verdict(spec: OpSpec, problems: Sequence[str], verbose: bool, look_up: bool = True) -> Compatibility:
    """Returns whether the op can be loaded here: `problems`, or else why it is neither stored nor can be built.

    `verbose` logs each reason. Without `look_up`, only `problems` count.
    """
    reasons = problems or (_build_problems(spec) if look_up else ())
    for reason in reasons if verbose else ():
        log.warning("%s: %s", spec.name, reason)
    return Compatibility(tuple(reasons))


def own_reasons(builder: Any) -> list[str]:
    """Returns the reasons of a builder that overrides `is_compatible`, as DeepSpeed's do; none if it is true.

    The override may call `load`, which must not call it again, or the base's `is_compatible`, which looks nothing up.
    """
    if builder._in_own_verdict:
        return []
    builder._in_own_verdict = True
    try:
        verdict = builder.is_compatible()
    finally:
        builder._in_own_verdict = False
    return [] if verdict else [*getattr(verdict, "reasons", ())] or ["its is_compatible() returns False"]


def _build_problems(spec: OpSpec) -> list[str]:
    """Returns every reason why the op is neither stored here nor can be built."""
    problems = []
    try:
        if find(spec).entry is None:
            problems += _toolchain_problems(spec)
            if settings.prebuilt() == "require":
                problems.append("no built entry fits, and OPFORGE_PREBUILT=require forbids building")
    except OpIncompatibleError as error:
        problems += error.reasons
    except (BuildResourceError, CacheDirError, SourceNotFoundError, ToolchainError) as error:
        problems.append(str(error))
    return [] if problems and _is_offered(spec) else problems


def _is_offered(spec: OpSpec) -> bool:
    """Returns whether `load` would fetch the op from a remote."""
    try:
        return bool(offered(spec, current_store())[0])
    except (CacheDirError, SourceNotFoundError):
        return False


def _toolchain_problems(spec: OpSpec) -> list[str]:
    try:
        toolchains.find_toolchain(spec, current_store())
    except ToolchainNotFoundError as error:
        return [str(error)]
    except OpIncompatibleError as error:
        return [*error.reasons]
    return []


def capabilities_for(target: Target, op: str) -> Capabilities:
    """Returns the capabilities that a builder's `gate` gets.

    Every accelerator offers the host's ops too: these get the host's capabilities.
    """
    from opforge.accelerator.registry import make_accelerator
    from opforge.accelerator.select import get_accelerator

    active = get_accelerator()
    is_host_op = target.device == "cpu" and active.target().device != "cpu"
    return (make_accelerator("cpu", op) if is_host_op else active).capabilities()
