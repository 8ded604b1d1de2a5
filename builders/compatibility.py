"""Whether an op can be used here: true or false, with the reasons."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from opforge.builders import toolchains
from opforge.builders.declaration.op_spec import OpSpec
from opforge.cache.current_store import current_store
from opforge.errors import (
    BuildResourceError,
    CacheDirError,
    OpIncompatibleError,
    SourceNotFoundError,
    ToolchainError,
    ToolchainNotFoundError,
)
from opforge.foundation import settings

from . import load_op
from .lookup.finder import offered

log = logging.getLogger("opforge")


class Compatibility(NamedTuple):
    """True if there is no reason against. Use it as a bool, print it for the reasons."""

    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        return "; ".join(self.reasons) or "compatible"


def verdict(builder: Any, verbose: bool) -> Compatibility:
    """Returns whether the builder's `load` can succeed here: its gate's reasons, or why it is neither stored nor built.

    `verbose` logs each reason. Within its own verdict nothing is looked up.
    """
    spec = builder.spec()
    reasons = load_op.gate_problems(builder, spec)
    if not reasons and not builder._in_own_verdict:
        reasons = _build_problems(spec)
    for reason in reasons if verbose else ():
        log.warning("%s: %s", spec.name, reason)
    return Compatibility(tuple(reasons))


def _build_problems(spec: OpSpec) -> list[str]:
    """Returns every reason why the op is neither stored here nor can be built."""
    problems = []
    try:
        if load_op.find(spec).entry is None:
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
