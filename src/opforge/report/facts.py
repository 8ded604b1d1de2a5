"""What is here and what state it is in: the facts behind `opforge report` and the plans that `build-ops` shows.

Nothing here builds or prints. What cannot be told is a reason in the answer, so that one broken part hides no other.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from opforge import settings
from opforge.accelerator.interface.accelerator import Accelerator
from opforge.accelerator.interface.op_builders import target_for
from opforge.builders.base import OpBuilder
from opforge.builders.lookup.finder import Found, find
from opforge.builders.planner import make_plan
from opforge.builders.spec import installed_torch
from opforge.builders.spec.build_plan import BuildPlan, Step
from opforge.builders.spec.op_spec import OpSpec, root_paths
from opforge.builders.spec.targets import ACCELERATORS
from opforge.builders.toolchains import DEVICES, TOOLCHAINS, find_toolchain, probe
from opforge.builders.toolchains.host import portable
from opforge.cache import layout
from opforge.cache.current import current_store
from opforge.cache.filesystem import trust
from opforge.cache.filesystem.disk import Disk
from opforge.cache.maintenance import listing
from opforge.cache.records.entry import Entry
from opforge.cache.store import Rejected
from opforge.errors import OpforgeError, ToolchainNotFoundError


class Offer(NamedTuple):
    """An op that an accelerator offers, by its builder's class name."""

    name: str
    accelerator: Accelerator

    def builder_class(self) -> Any:
        """The builder's class, imported now. Raises whatever that import raises."""
        return self.accelerator.get_op_builder(self.name)


class Readiness(NamedTuple):
    """What becomes of a `load()` of this op."""

    name: str
    accelerator: str
    target: str
    state: str
    """ready (prebuilt, in a layer), cached, buildable, or unusable."""
    reasons: tuple[str, ...] = ()
    path: str = ""
    """The library, where there is one."""


class Planned(NamedTuple):
    """A build as it would run."""

    spec: OpSpec
    plan: BuildPlan
    places: dict[str, str]
    """Where each root of the plan lies here."""
    steps: list[Step]
    found: Entry | None
    """The entry that is used instead, if there is one."""
    rejected: tuple[Rejected, ...]
    """Every stored entry that does not fit, with the reason."""
    compiler: str
    """The program that compiles; in a command, what stands before it launches it."""


# -- ops ---------------------------------------------------------------------------------------------------------------


def accelerator_named(device: str) -> Accelerator:
    """The accelerator of a device to build for, whether or not such a device is here.

    Raises UnknownAcceleratorError, AcceleratorUnavailableError.
    """
    from opforge.accelerator.select import make_accelerator

    return make_accelerator(ACCELERATORS.get(device, device), "the target")


def offers(devices: Iterable[str] = ()) -> list[Offer]:
    """The ops that these devices' accelerators offer; by default those of the one in use, then the CPU's."""
    return [
        Offer(name, accelerator)
        for accelerator in _offering(devices)
        for name, whose in sorted(accelerator.op_builders().items())
        if whose == accelerator.name  # the host's are listed as the host's
    ]


def refused(devices: Iterable[str] = ()) -> list[str]:
    """What other packages add wrongly to those accelerators, in sentences."""
    told = {entry: why for one in _offering(devices) for entry, why in one.op_builder_problems().items()}
    return [f"the op builder {entry} is left out: {why}" for entry, why in told.items()]


def _offering(devices: Iterable[str]) -> list[Accelerator]:
    wanted = {one.name: one for one in map(accelerator_named, devices)}
    if wanted:
        return list(wanted.values())
    from opforge.accelerator.select import get_accelerator

    active = get_accelerator()
    return [active] if active.name == "cpu" else [active, accelerator_named("cpu")]


def readiness(offer: Offer) -> Readiness:
    """Whether an op can be loaded here, and from where. Builds nothing and raises nothing."""
    known = Readiness(offer.name, offer.accelerator.name, "", "unusable")
    try:
        target = offer.accelerator.target()
        known = known._replace(target=str(target))
        made = offer.builder_class()
        builder = made(target=target_for(made, target))
        answer = builder.is_compatible()
        if not answer:
            return known._replace(reasons=tuple(answer.reasons))
        entry = find(builder.spec()).entry if isinstance(builder, OpBuilder) else None
    except OpforgeError as problem:
        return known._replace(reasons=(str(problem),))
    except Exception as problem:  # a broken builder of another package must not hide the others
        return known._replace(reasons=(f"broken: {type(problem).__name__}: {problem}",))
    if entry is None:
        return known._replace(state="buildable")
    return known._replace(state="cached" if entry.origin == "cache" else "ready", path=entry.library)


def planned(builder: OpBuilder, exact: bool = False, look_up: bool = True) -> Planned:
    """Returns the plan of a builder and the commands that would run. Raises what `find` and `make_plan` raise."""
    spec, store = builder.spec(), current_store()
    found = find(spec, store, exact=exact) if look_up else Found(None, ())
    toolchain = find_toolchain(spec, store)
    plan, paths = make_plan(spec, toolchain), root_paths(spec, toolchain.root_paths())
    steps = toolchain.steps(plan, paths, f"{plan.op}.so")
    compiler = str(getattr(toolchain, "argv", steps[-1].argv)[0])
    return Planned(spec, plan, paths, steps, found.entry, found.rejected, compiler)


# -- the machine -------------------------------------------------------------------------------------------------------


def environment() -> dict[str, Any]:
    """Versions and places of Python and torch; torch is not imported."""
    folder = installed_torch.torch_folder()
    torch: dict[str, str] = {"problem": "torch is not installed. Install it: pip install torch"}
    if folder:
        try:
            torch = {"version": installed_torch.torch_version(folder), "path": folder}
        except (OSError, OpforgeError) as problem:
            torch = {"path": folder, "problem": str(problem)}
    return {
        "python": {"version": sys.version.split()[0], "path": sys.executable, "tag": installed_torch.python_tag()},
        "torch": torch,
    }


def accelerators() -> dict[str, Any]:
    """Every candidate with its reason, and the one in use with its capabilities. Imports torch."""
    from opforge.accelerator import candidates, get_accelerator

    told: dict[str, Any] = {"candidates": [], "problems": [], "in_use": None, "capabilities": None}
    try:
        active = get_accelerator()
        told["in_use"] = {"name": active.name, "target": str(active.target()), "ops": active.op_builder_dir()}
        told["capabilities"] = active.capabilities().as_dict()
    except Exception as problem:  # torch may be missing or broken: that is what the report is to say
        told["problems"].append(_text(problem))
    try:
        told["candidates"] = [
            {"name": one.name, "available": one.available, "reason": one.reason, "source": one.source}
            for one in candidates()
        ]
    except Exception as problem:
        if _text(problem) not in told["problems"]:
            told["problems"].append(_text(problem))
    return told


def _text(problem: Exception) -> str:
    return str(problem) if isinstance(problem, OpforgeError) else f"{type(problem).__name__}: {problem}"


def compilers() -> list[dict[str, str]]:
    """Every toolchain, the host's linker, ninja: where it is and its version, or why it cannot be used and what to
    install."""
    root, _chosen = settings.cache_dir()
    trusted = trust.folder_problem(root, trust.trusted_ids()) is None
    place = layout.Layout(root if trusted else os.path.join(os.devnull, "none"))
    told: list[dict[str, str]] = []
    tools: dict[str, Callable[[], tuple[str, str]]] = {"ninja": _ninja}
    makers: dict[str, Callable[[], Any]] = {name: partial(_make, where, place) for name, where in TOOLCHAINS.items()}
    makers["portable"] = partial(portable, (), settings.sysroot(), place, Disk())
    for name, make in makers.items():
        one = {"name": name, "path": "", "version": "", "problem": "", "missing": ""}
        try:
            toolchain = make()
            # Triton is a package that Python runs: Python's own path would say nothing of it.
            one["path"] = getattr(toolchain, "package", toolchain.argv[0])
            one["version"] = _version(toolchain)
            if name == DEVICES["cpu"]:
                tools = {"linker": partial(_linker, toolchain), **tools}
        except ToolchainNotFoundError as problem:
            # Only the host's must be there; of a device's it is enough to say that it is not.
            if name == DEVICES["cpu"]:
                one["problem"] = str(problem)
            else:
                one |= {"version": problem.short, "missing": str(problem)}
        except OpforgeError as problem:
            one["problem"] = str(problem)
        told.append(one)
    for name, tool in tools.items():
        one = {"name": name, "path": "", "version": "", "problem": "", "missing": ""}
        try:
            one["path"], one["version"] = tool()
        except OpforgeError as problem:
            one["problem"] = str(problem)
        told.append(one)
    return told


def _ninja() -> tuple[str, str]:
    from opforge.builders.run.ninja import find_ninja

    path = find_ninja()
    return path, probe.run([path], "--version", advice="Install it anew: pip install --force-reinstall ninja").strip()


def _linker(host: Any) -> tuple[str, str]:
    flags = host.flags()[1]
    chosen = any(flag.startswith("-fuse-ld=") for flag in flags)
    path = host.linker if chosen else probe.run(host.argv, "-print-prog-name=ld").strip()
    return path, probe.run(host.argv, *flags, "-Wl,--version").strip().partition("\n")[0]


def _make(where: str, place: layout.Layout) -> Any:
    module, _, attribute = where.partition(":")
    return getattr(importlib.import_module(module), attribute)(place, Disk())


def _version(toolchain: Any) -> str:
    known, root = dict(toolchain.identity()), getattr(toolchain, "root", "")
    alone = f"no compiler of its own: text, put into the library by {known['version']}" if root else known["version"]
    return str(known.get(f"{root} version", alone))


def compilers_in(identity: Mapping[str, str]) -> str:
    """The versions of the compilers that a toolchain's identity names: the device's, and that of the host beside it."""
    told = {name.removesuffix(" version"): one for name, one in identity.items() if name.endswith(" version")}
    own = [one if one[:1].isalpha() else f"{name} {one}" for name, one in told.items()]
    return " with ".join([*own, *filter(None, [identity.get("version", "")])])


def cache() -> dict[str, Any]:
    """The user's own store: path, bytes, entries, and why it cannot be trusted, if so. Creates nothing."""
    root, chosen = settings.cache_dir()
    found = trust.folder_problem(root, trust.trusted_ids())
    place = layout.Layout(root)
    told: dict[str, Any] = {"path": root, "chosen": chosen, "exists": os.path.isdir(root)}
    told |= {"layers": list(settings.cache_layers()), "problem": f"{found[0]}. {found[1]}." if found else ""}
    try:
        told |= {"bytes": sum(one.size for one in listing.areas(place)), "entries": len(listing.entries(place))}
    except OSError as problem:
        told |= {"bytes": 0, "entries": 0, "problem": told["problem"] or str(problem)}
    return told
