"""The names that the shell completes: ops, keys, targets, layers. They are read from tables and small files."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from opforge.errors import OpforgeError

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
    """Returns the names in the store: ops, and once a letter is typed the keys of entries, and others as KIND:NAME."""
    items = []
    for key, op, target in _entries():
        items.append((op, "in the cache"))
        if incomplete:
            items.append((key, f"{op} for {target}"))
    if incomplete:
        items += _others()
    return _starting(incomplete, dict(items).items())


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


def _if_usable(names: Callable[[], list[T]]) -> Callable[[], list[T]]:
    """Makes a function return no name if the cache or a settings file cannot be used.

    The command itself will report that. A shell would print the traceback into the line that is typed.
    """

    @functools.wraps(names)
    def usable() -> list[T]:
        try:
            return names()
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


@_if_usable
def _others() -> list[tuple[str, str]]:
    """Returns the stored artifacts of the kinds that are named by KIND:NAME, each with its kind's noun."""
    from opforge.cache.current import own_store
    from opforge.remote import kinds

    layout, names = own_store().layout, dict[str, str]()
    for kind in kinds.every():
        found = islice(kind.stored(layout), MAX_ENTRIES) if kind.name != "op" else ()
        names |= {f"{kind.name}:{one.name}": f"a {kind.noun}" for one in found if one.name}
    return [*names.items()]


@_if_usable
def _entries() -> list[tuple[str, str, str]]:
    """Returns the key, the op and the target of the store's entries. It writes nothing."""
    from opforge.cache.current import own_store
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
