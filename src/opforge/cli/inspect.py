"""`opforge inspect`: what a built op holds and needs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from opforge.accelerator.target import Target
from opforge.errors import InspectionError

from .guard import Guarded, json_option
from .output import counted, emit_json, heading, show_table, size_text
from .selection import all_targets, select, target_option

SHOWN = 10
"""So many of the largest functions are shown; --json has all."""
SHORTEST_KEY = 6


@click.command("inspect", cls=Guarded)
@click.argument("what", metavar="ENTRY|OP|PATH")
@target_option
@json_option
def command(what: str, targets: Sequence[Target], levels: Sequence[str], as_json: bool) -> None:
    """Show the architectures inside, registers, shared memory and spills by kernel, sizes, what loading needs, and
    what the compilers said.

    ENTRY is a key of `opforge cache ls`, or six or more of its first letters. OP is as for build-ops, and must have
    been built. PATH is a library, a cubin, an HSACO, a fatbin, a PTX file, or a folder with such.

    \b
    Examples:
      opforge inspect CPUAdam
      opforge inspect FusedAdam --target cuda:sm_80+sm_90+ptx
      opforge inspect 3f9c2a
      opforge inspect prebuilt/
    """
    told = [one for path, manifest in _resolve(what, all_targets(targets, levels)) for one in _examine(path, manifest)]
    if as_json:
        return emit_json({"files": told})
    for number, one in enumerate(told):
        if number:
            click.echo()
        _print(one)
    return None


def _resolve(what: str, targets: Sequence[Target]) -> list[tuple[str, dict[str, Any]]]:
    """The files or folders that are meant, each with its manifest, where it has one."""
    if os.path.exists(what):
        if not os.path.isfile(what) and not os.path.isdir(what):
            raise InspectionError(what, "it is neither a file nor a folder", "Give a library's path, or an op's name")
        return [(what, _manifest(what if os.path.isdir(what) else os.path.dirname(what)))]
    from opforge.builders.lookup.finder import find
    from opforge.cache.current import current_store

    layout = current_store().layout
    is_key = all(one in "0123456789abcdef" for one in what)
    if is_key and len(what) >= SHORTEST_KEY and os.path.isdir(layout.path("entries")):
        found = [layout.entry(one) for one in sorted(os.listdir(layout.path("entries"))) if one.startswith(what)]
        if found:
            return [(folder, _manifest(folder)) for folder in found]
    if os.sep in what:
        raise InspectionError(what, "there is no such file or folder", "Correct the path")
    try:
        chosen = select([what], targets)
    except click.UsageError as error:
        if not is_key:
            raise
        whole = len(what) >= SHORTEST_KEY
        begun = f"no entry in {layout} begins so" if whole else f"it takes {SHORTEST_KEY} letters of a key"
        raise InspectionError(what, f"{begun}, and no op has this name", "See the keys: opforge cache ls") from error
    places = []
    for one in chosen:
        entry = find(one.builder().spec()).entry
        if entry is None:
            target = f" --target {one.target}" if targets else ""
            advice = f"Build it first: build-ops {one.name}{target}. What is built of it, if anything: opforge cache ls"
            raise InspectionError(one.label, "nothing that is built answers it as it is now", advice)
        places.append((entry.folder, _manifest(entry.folder)))
    return places


def _manifest(folder: str) -> dict[str, Any]:
    """What the entry's manifest says of its library and its build; nothing where there is none."""
    from opforge.report.facts import compilers_in

    try:
        with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
            told = json.load(file)
        binary = told["binary"]
        kept = {name: binary[name] for name in ("op", "abi", "target", "torch_target") if name in binary}
        compiler, said = compilers_in(told["components"]["toolchain"]), told["built"].get("said", "")
        return {**kept, "file": binary["file"], "compiler": compiler, "said": said}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _examine(path: str, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    from opforge.builders.inspection.examine import examine, inspectable_files

    files = inspectable_files(path) if os.path.isdir(path) else [path]
    told, refused = [], []
    for file in files:
        try:
            entry = dict(manifest) if os.path.basename(file) == manifest.get("file") else {}
            told.append({**examine(file), "entry": entry})
        except (OSError, ValueError) as error:
            refused.append(str(error))
    if not told:
        problem = "; ".join(refused) or "it holds no file"
        raise InspectionError(path, problem, "Name a library, a cubin, an HSACO, a fatbin, a PTX file or an entry")
    return told


def _print(told: Mapping[str, Any]) -> None:
    click.echo(f"{told['kind']} {told['path']}, {size_text(told['size'])}")
    entry = told["entry"]
    if entry:
        click.echo(f"op {entry['op']} for {entry['target']}, ABI {entry['abi']}, by {entry['compiler']}")
        if entry["said"]:
            heading("the compilers said")
            click.echo(entry["said"])
    for note in told["notes"]:
        click.echo(f"note: {note}")
    if "machine" in told:
        _print_host(told)
    if told["images"]:
        heading("device code")
        rows = [(one["kind"], one["arch"], size_text(one["size"]), one["compression"]) for one in told["images"]]
        show_table(("KIND", "ARCH", "SIZE", "COMPRESSED"), rows, ("SIZE",))
    if told["kernels"]:
        heading(counted(len(told["kernels"]), "kernel", "kernels"))
        columns = ("code", "registers", "shared", "stack", "spills")
        rows = [(one["name"], one["arch"], *(_known(one[name]) for name in columns)) for one in told["kernels"]]
        show_table(("KERNEL", "ARCH", *(name.upper() for name in columns)), rows, [name.upper() for name in columns])


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)


def _print_host(told: Mapping[str, Any]) -> None:
    floors = ", ".join(f"{name} {version}" for name, version in told["floors"].items())
    needs = [("machine", told["machine"]), ("libraries", " ".join(told["needs"])), ("symbols", floors)]
    shims = told["shims"]
    if shims["used"]:
        newest = f"{shims['floor']} or newer" if shims["floor"] else "any that has these"
        needs.append(
            ("torch", f"{newest}, by {counted(len(shims['used']), 'function', 'functions')} of its C interface")
        )
    heading("needs")
    show_table(("WHAT", "WHICH"), needs)
    if told["exports"]:
        heading("exports")
        for name in told["exports"]:
            click.echo(name)
    if told["functions"]:
        heading(f"the largest of {counted(len(told['functions']), 'function', 'functions')}")
        rows = [(one["name"], one["size"]) for one in told["functions"][:SHOWN]]
        show_table(("FUNCTION", "BYTES"), rows, ("BYTES",))
