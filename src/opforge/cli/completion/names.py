"""The names that the shell completes: ops, keys, targets, layers. They are read from tables and small files."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from opforge.cli.verbs import OTHERS, WITHOUT_MEANING, without_meaning
from opforge.errors import OpforgeError

if TYPE_CHECKING:
    from opforge.remote.kinds import Kind, StoredArtifact

P = ParamSpec("P")
T = TypeVar("T")
MAX_ENTRIES = 500
"""How many entries of the store are read: a shell waits for the completion."""
FILES = CompletionItem("", type="file")
DEVICE_ARCHS = {
    "cuda": ("native", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100f", "sm_120", "ptx"),
    "hip": ("native", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"),
    "xpu": ("pvc", "bmg"),
}
"""The usual architectures of devices. Others can be typed: see docs/toolchains.md."""


def ops(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns the ops that accelerators offer; after `module:`, the builders of that module of the working folder."""
    return _starting(incomplete, _offered())


def stored(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns the names on this machine that a command is for.

    They are ops; and once a letter is typed also the keys of entries, packages, and others as KIND:NAME.
    """
    verb = ctx.command_path.partition(" ")[2] if ctx else "ls"
    before = next((f"{kind}:" for kind in ("op", "package") if incomplete.startswith(f"{kind}:")), "")
    items = []
    for key, op, target in _entries():
        items.append((op, "in the cache"))
        if incomplete:
            items.append((key, f"{op} for {target}"))
    if incomplete:
        items += [*_packages(verb), *_others(verb)]
    if before:
        items = [item for item in items if ":" not in item[0] and ("/" in item[0]) == (before == "package:")]
    return _starting(incomplete, {f"{before}{name}": text for name, text in items}.items())


def published(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns what this machine may have signed, as `opforge withdraw` names it."""
    return _starting(incomplete, _made_here())


def scopes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns scopes of keys: for all names of a kind, and for those on this machine."""
    from opforge.remote.kind_table import KINDS

    items = [(f"{kind}:{'*/*' if '/' in row.form else '*'}", f"all of the kind {kind}") for kind, row in KINDS.items()]
    items += [(f"op:{op}", "in the cache") for _key, op, _target in _entries() if op]
    return _starting(incomplete, dict([*items, *_others("key trust --for")]).items())


def stored_or_offered(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns the results of `stored` and `ops`."""
    items = [*ops(ctx, param, incomplete), *stored(ctx, param, incomplete)]
    return list({item.value: item for item in items}.values())


def inspected(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns ops, keys and layers, and the files of the working folder."""
    layers = _starting(incomplete, ((layer, "a layer") for layer in _layers()))
    return [*stored_or_offered(ctx, param, incomplete), *layers, FILES]


def targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns devices with their architectures; after `+`, further architectures of the device."""
    from opforge.accelerator.target import CPU_ARCHS

    first, plus, _last = incomplete.rpartition("+")
    device = first.partition(":")[0]
    if plus:
        chosen = first.partition(":")[2].split("+")
        archs = [arch for arch in DEVICE_ARCHS.get(device, ()) if arch not in chosen and arch != "native"]
        return _starting(incomplete, ((f"{first}+{arch}", "") for arch in archs))
    names = [f"cpu:{arch}" for arch in CPU_ARCHS]
    names += [f"{device}:{arch}" for device, archs in DEVICE_ARCHS.items() for arch in archs if arch != "ptx"]
    return _starting(incomplete, ((name, "") for name in (*names, "opencl")))


def _starting(incomplete: str, names: Iterable[tuple[str, str]]) -> list[CompletionItem]:
    typed = incomplete.lower()
    return [CompletionItem(name, help=text) for name, text in names if name and name.lower().startswith(typed)]


def _if_usable(names: Callable[P, list[T]]) -> Callable[P, list[T]]:
    """Makes a function return no name if the cache or a settings file cannot be used.

    The command itself will report that. A shell would print the traceback into the line that is typed.
    """

    @functools.wraps(names)
    def usable(*values: P.args, **named: P.kwargs) -> list[T]:
        try:
            return names(*values, **named)
        except (OpforgeError, OSError):
            return []

    return usable


@_if_usable
def _offered() -> list[tuple[str, str]]:
    """Returns the ops of opforge's own accelerators and those that packages add to one, without making any."""
    from opforge.accelerator.entry_points import entry_points
    from opforge.accelerator.registry import BUILT_IN

    owners: dict[str, list[str]] = {}
    for accelerator in BUILT_IN:
        try:
            table = importlib.import_module(f"opforge.builders.{accelerator}").BUILDERS
        except ModuleNotFoundError:
            continue  # it has no ops of its own
        for name in table:
            owners.setdefault(name.removesuffix("Builder"), []).append(accelerator)
    for point in entry_points("opforge.op_builders"):
        accelerator, _, name = point.name.partition(".")
        owners.setdefault(name.removesuffix("Builder"), []).append(accelerator)
    return [(name, f"an op for {', '.join(sorted(devices))}") for name, devices in sorted(owners.items())]


@_if_usable
def _layers() -> list[str]:
    """Returns the layers that are named."""
    from opforge.foundation import settings

    return [*settings.cache_layers()]


def _others(verb: str) -> list[tuple[str, str]]:
    """Returns the stored artifacts of the kinds that are named by KIND:NAME, each with its kind's noun."""
    return [*{f"{kind.name}:{one.name}": f"a {kind.noun}" for kind, one in _artifacts(verb) if one.name}.items()]


def _made_here() -> list[tuple[str, str]]:
    """Returns the artifacts that were made here, each with its label, as in a store."""
    made = [(key, f"{op} for {target}") for key, op, target in _entries()]
    others = [(kind, one) for kind, one in _artifacts("withdraw") if one.name and not one.is_fetched]
    return made + [(f"{kind.name}:{one.name}@{one.label}", f"a {kind.noun}") for kind, one in others]


def _is_for(verb: str, kind: str) -> bool:
    return verb not in WITHOUT_MEANING or not without_meaning(verb, kind)


@_if_usable
def _artifacts(verb: str) -> list[tuple[Kind, StoredArtifact]]:
    """Returns the stored artifacts of the kinds, other than ops, that a command is for."""
    from opforge.cache.current_store import own_store
    from opforge.remote import kinds

    layout = own_store().layout
    named = [kind for kind in kinds.every() if kind.name in OTHERS and _is_for(verb, kind.name)]
    return [(kind, one) for kind in named for one in islice(kind.stored(layout), MAX_ENTRIES)]


@_if_usable
def _packages(verb: str) -> list[tuple[str, str]]:
    """Returns the installed packages, if a command is for them."""
    from opforge.packages.installed import layout, releases

    if verb == "publish" or not _is_for(verb, "package"):
        return []  # a package is published from its folder
    return [(name, "an installed package") for root in layout.roots() for name in releases.names(root)]


@_if_usable
def _entries() -> list[tuple[str, str, str]]:
    """Returns the key, the op and the target of the store's entries. It writes nothing."""
    from opforge.cache.current_store import own_store
    from opforge.cache.maintenance.listing import subfolders
    from opforge.cache.maintenance.summaries import Summaries
    from opforge.fast_path.library import RECORD

    layout = own_store().layout
    summaries, entries = Summaries(layout), []
    for folder in subfolders(layout.path("entries"))[:MAX_ENTRIES]:
        try:
            summary = summaries.get(folder.name, os.stat(os.path.join(folder.path, RECORD)))
        except OSError:
            continue  # it is being removed
        entries.append((folder.name, summary.op if summary else "", summary.target if summary else ""))
    return entries
