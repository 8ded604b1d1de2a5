"""The state of each op, and the plan of a build: for `opforge report` and `build-ops --dry-run`.

Nothing here builds or prints.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from opforge.accelerator.interface.accelerator import Accelerator, target_for
from opforge.accelerator.interface.builder_protocol import create
from opforge.accelerator.registry import accelerator_name, accelerator_named
from opforge.builders.base import OpBuilder
from opforge.builders.declaration.build_plan import BuildPlan, Step
from opforge.builders.declaration.op_spec import OpSpec, root_paths
from opforge.builders.load_op import Found, find
from opforge.builders.lookup.finder import offered
from opforge.builders.planner import make_plan
from opforge.builders.toolchains import find_toolchain
from opforge.cache.current_store import current_store
from opforge.cache.store import Rejected
from opforge.errors import OpforgeError, OpIncompatibleError
from opforge.fast_path.library import Entry


class OfferedOp(NamedTuple):
    """An op that an accelerator offers, by its builder's class; or one of the user's own, as package.module:Class."""

    name: str
    accelerator: Accelerator
    own: Any = None
    """The user's own class."""

    def builder_class(self) -> Any:
        """Imports and returns the builder's class. Raises whatever that import raises."""
        return self.own or self.accelerator.get_op_builder(self.name)


class Readiness(NamedTuple):
    """The step that `load()` of an op would take on this machine."""

    name: str
    accelerator: str
    target: str
    state: str
    """ready (prebuilt, in a layer), cached, fetchable (a remote has it), buildable, or unusable."""
    reasons: tuple[str, ...] = ()
    path: str = ""
    """The library, if one is built; the remote and its offer, if it would be fetched."""


class Planned(NamedTuple):
    """A build as it would run."""

    spec: OpSpec
    plan: BuildPlan
    root_paths: dict[str, str]
    """The path of each root of the plan on this machine."""
    steps: list[Step]
    entry: Entry | None
    """The entry that would be used instead of a build; None if there is none."""
    rejected: tuple[Rejected, ...]
    """The stored entries that do not fit, with their reasons."""
    compiler: str
    """The program that compiles. What precedes it in a command is a compiler launcher (ccache, ...)."""
    remote: str = ""
    """The remote and its offer that would be fetched instead of a build; empty if there is none."""


def offers(devices: Iterable[str] = ()) -> list[OfferedOp]:
    """Returns the ops that the accelerators of these devices offer; by default of the one in use, then of the CPU."""
    return [
        OfferedOp(name, accelerator)
        for accelerator in _accelerators(devices)
        for name, owner in sorted(accelerator.op_builders().items())
        if owner == accelerator.name  # the CPU's ops are listed under the CPU
    ]


def own_offers(name: str, own: Any, devices: Iterable[str] = ()) -> list[OfferedOp]:
    """Returns a class of the user's own as an op of those accelerators whose device it declares.

    Raises OpIncompatibleError if there is none.
    """
    accelerators, declared = _accelerators(devices), getattr(own, "devices", ())
    served = {accelerator_name(device) for device in declared}
    found = [OfferedOp(name, accelerator, own) for accelerator in accelerators if accelerator.name in served]
    if not found:
        others = ", ".join(accelerator.name for accelerator in accelerators)
        raise OpIncompatibleError(name, others, [f"it is an op for {', '.join(declared) or 'no device'}"])
    return found


def offer_problems(devices: Iterable[str] = ()) -> list[str]:
    """Returns a sentence for each op builder that another package adds to those accelerators wrongly."""
    problems = {
        entry: problem
        for accelerator in _accelerators(devices)
        for entry, problem in accelerator.op_builder_problems().items()
    }
    return [f"the op builder {entry} is ignored: {problem}" for entry, problem in problems.items()]


def _accelerators(devices: Iterable[str]) -> list[Accelerator]:
    if named := {accelerator.name: accelerator for accelerator in map(accelerator_named, devices)}:
        return list(named.values())
    from opforge.accelerator.select import get_accelerator

    active = get_accelerator()
    return [active] if active.name == "cpu" else [active, accelerator_named("cpu")]


def readiness(offer: OfferedOp) -> Readiness:
    """Returns whether an op can be loaded here, and from where. Builds nothing and raises nothing."""
    result = Readiness(offer.name, offer.accelerator.name, "", "unusable")
    try:
        target = offer.accelerator.target()
        result = result._replace(target=str(target))
        builder_class = offer.builder_class()
        builder = create(builder_class, target_for(builder_class, target))
        compatibility = builder.is_compatible()
        if not compatibility:
            return result._replace(reasons=tuple(compatibility.reasons))
        entry, remote = None, ""
        if isinstance(builder, OpBuilder):
            spec = builder.spec()
            entry = find(spec).entry
            remote = "" if entry else offered(spec, current_store())[0]
    except OpforgeError as error:
        return result._replace(reasons=(str(error),))
    except Exception as error:  # a broken builder of another package must not hide the others
        return result._replace(reasons=(f"broken: {type(error).__name__}: {error}",))
    if entry is None:
        return result._replace(state="fetchable" if remote else "buildable", path=remote)
    return result._replace(state="cached" if entry.origin == "cache" else "ready", path=entry.library)


def planned(builder: OpBuilder, exact: bool = False, look_up: bool = True) -> Planned:
    """Returns the plan of a builder and the commands that would run. Raises what `find` and `make_plan` raise."""
    spec, store = builder.spec(), current_store()
    entry, rejected = find(spec, store, exact=exact) if look_up else Found(None, ())
    remote, others = offered(spec, store, exact) if look_up and not entry else ("", ())
    toolchain = find_toolchain(spec, store)
    plan, paths = make_plan(spec, toolchain), root_paths(spec, toolchain.root_paths())
    steps = toolchain.steps(plan.located(paths), paths, f"{plan.op}.so")
    compiler = str(getattr(toolchain, "argv", steps[-1].argv)[0])
    return Planned(spec, plan, paths, steps, entry, (*rejected, *others), compiler, remote)
