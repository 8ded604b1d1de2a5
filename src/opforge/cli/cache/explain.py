"""`opforge cache explain OP`: whether it is a hit, and for a miss everything that differs from the nearest entry."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from opforge.accelerator.target import Target
from opforge.cli import kinds, messages
from opforge.cli import tuned as tuned_names
from opforge.cli.completion import names as completed_names
from opforge.cli.guard import FAILED, OK, Guarded, json_option
from opforge.cli.output import age_text, counted, emit_json
from opforge.cli.selection import Selected, all_targets, mode_options, select, target_option
from opforge.errors import OpforgeError, OpIncompatibleError, ToolchainError, ToolchainNotFoundError

from . import entries

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder
    from opforge.cache.layout import Layout
    from opforge.cache.maintenance.explain import Difference, Nearest
    from opforge.cache.maintenance.listing import StoredEntry
    from opforge.cache.store import Rejected
    from opforge.fast_path.library import Entry


@click.command("explain", cls=Guarded)
@click.argument("op", metavar="OP|KEY|op:NAME|jit:ADAPTER/LABEL", shell_complete=completed_names.stored_or_offered)
@target_option
@mode_options
@json_option
def command(
    op: str, targets: Sequence[Target], levels: Sequence[str], debug: bool, sanitize: str, as_json: bool
) -> None:
    """Show whether OP is stored as it is now. If not, show what has changed since the nearest entry was built.

    For an op with tunable configs it also shows which configs its calls use, and why the others are not used.

    For the code of a JIT, jit:ADAPTER/LABEL, it shows which part of each page's fingerprint differs here.

    OP is as for build-ops, or a key or an op of `opforge ls`, also one of opforge.load. Of a key, any beginning
    that no other key has is enough. No package declares such an op: the inputs of its entries are compared with
    their present state, but not the arguments of the call. Of the entries that differ in their inputs alone, as
    edits leave them, the one that fits is shown, or else the nearest. The exit code is 0 for a hit and 1 for a miss.

    \b
    Examples:
      opforge cache explain CPUAdam
      opforge cache explain FusedAdam --target cuda:sm_90
      opforge cache explain 3f9c2a
      opforge cache explain jit:triton/solver
    """
    named = kinds.by_kind([op], "cache explain")
    for label in named["jit"]:
        return _explain_jit(label, as_json)
    (name,), requested = named["op"], all_targets(targets, levels)
    stored, layout = _stored_entries(op, name, requested)
    if stored:
        plans = dict.fromkeys(entry.plan for entry in stored)
        records = [_explain_stored(layout, [entry for entry in stored if entry.plan == plan]) for plan in plans]
    else:
        records = [explain_op(selected, debug, sanitize) for selected in select([op], requested)]
    if as_json:
        emit_json(records if len(records) > 1 else records[0])
    else:
        for record in records:
            _print(record)
    sys.exit(OK if all(record["hit"] for record in records) else FAILED)


def _explain_jit(name: str, as_json: bool) -> None:
    """Shows the pages of a label. The exit code is 0 if one of them is used here. Raises click.UsageError."""
    from opforge.cache.current_store import own_store
    from opforge.jits import adapter
    from opforge.jits.explain import explain
    from opforge.jits.kind import JIT

    among = own_store()
    stored = [one for one in JIT.stored(among.layout) if not one.problem]
    pages = explain(among, [one for one in stored if kinds.is_meant(JIT, one.name, one.label, name)])
    jit, slash, label = name.partition("/")
    if not pages and not (slash and label and jit in adapter.every()):
        known = ", ".join(adapter.every())
        raise click.UsageError(f"'jit:{name}' is not an adapter's label. Expected jit:ADAPTER/LABEL, of {known}.")
    if as_json:
        emit_json([page._asdict() for page in pages])
    for page in () if as_json else pages:
        state, entries = "differs" if page.differs else "used here", counted(page.entries, "entry", "entries")
        click.echo(f"{state}: jit:{page.name}, {page.path} ({entries})")
        for text in page.differs:
            click.echo(f"  {text}")
    if not pages and not as_json:
        near = get_close_matches(name, {one.name for one in stored}, n=1)
        meant = f". Did you mean jit:{near[0]}?" if near else ""
        scope = adapter.at(adapter.BUILT_IN[jit]).scope if jit in adapter.BUILT_IN else "opforge.warm"
        click.echo(f"jit:{name}: nothing is stored. {scope}({label!r}) keeps what is compiled{meant}")
    sys.exit(OK if any(not page.differs for page in pages) else FAILED)


def _stored_entries(op: str, name: str, targets: Sequence[Target]) -> tuple[list[StoredEntry], Layout]:
    """Returns the stored entries of a key, or of an op that no package offers for the targets.

    `name` is `op` without op: before it. None for an offered op, and for module:Class. Raises click.UsageError.
    """
    from opforge.cache.current_store import own_store
    from opforge.cache.maintenance import listing

    layout = own_store().layout
    if ":" in name:
        return [], layout
    stored = [entry for entry in listing.entries(layout) if not entry.problem]
    keyed = [] if entries.entries_of_op(stored, name) else entries.entries_with_key(stored, name)
    if len(keyed) == 1:
        return keyed, layout
    try:
        select([op], targets)
        return [], layout
    except click.UsageError as error:
        return entries.named_or_offered(stored, name, error), layout


def _explain_stored(layout: Layout, stored: Sequence[StoredEntry]) -> dict[str, Any]:
    """Returns the record of the entries of one plan, JSON-able: a hit if one has the inputs of now."""
    from opforge.cache.maintenance.explain import Nearest
    from opforge.report.stored import changes

    compared = []
    for entry in stored:
        changed = changes(layout, entry, {version.key for version in stored})
        compared.append((len(changed.components) + len(changed.files), entry, changed))
        if not compared[-1][0]:
            break
    differences, entry, changed = min(compared, key=lambda item: (item[0], -item[1].built))
    record: dict[str, Any] = {"name": entry.op, "target": entry.target, "plan": entry.plan, "hit": not differences}
    if record["hit"]:
        record |= {"path": entry.path, "origin": "cache"}
    nearest = None if record["hit"] else _nearest_record(Nearest(entry, changed.components, changed.files))
    return record | {"rejected": [], "nearest": nearest, "note": changed.problem}


def explain_op(op: Selected, debug: bool, sanitize: str) -> dict[str, Any]:
    """Returns the record of a hit or a miss, JSON-able. Raises what the op's builder raises."""
    from opforge.builders.lookup.finder import other_descriptions
    from opforge.cache.current_store import current_store
    from opforge.cache.maintenance.explain import nearest
    from opforge.report.ops import planned

    builder, store = op.builder(debug, sanitize), current_store()
    try:
        build = planned(builder)
    except (ToolchainNotFoundError, ToolchainError, OpIncompatibleError) as error:
        return _explain_without_plan(op.name, builder, error)
    others = [] if build.entry else other_descriptions(build.spec, store, build.rejected)
    rejected = [*build.rejected, *others]
    record = _record(op.name, builder, build.plan.key, build.entry, rejected)
    if build.entry:
        return record | tuned_names.explained(builder, build.spec, build.entry)
    record["remote"] = build.remote
    near = nearest(store.layout, build.plan.op, build.plan.components(), build.root_paths, store.disk)
    return record | {"nearest": _nearest_record(near) if near else None}


def _explain_without_plan(name: str, builder: OpBuilder, error: OpforgeError) -> dict[str, Any]:
    """Returns the record if no compiler can make a plan: the prebuilt entry that fits, or why each does not."""
    from opforge.builders.load_op import search
    from opforge.builders.lookup.finder import Finder, offered, other_descriptions
    from opforge.cache.current_store import current_store

    spec, store = builder.spec(), current_store()
    look_up = Finder(spec, store)
    try:
        entry = search(look_up)
    except (ToolchainNotFoundError, ToolchainError, OpIncompatibleError):
        entry = None  # the prebuilt entries were rejected before the plan was made
    remote, others = ("", ()) if entry else offered(spec, store)
    rejected = [*look_up.rejected, *others]
    if not entry:
        rejected += other_descriptions(spec, store, rejected)
    record = _record(name, builder, "", entry, list(dict.fromkeys(rejected)))
    return record | {"problem": str(error), "remote": remote}


def _record(
    name: str, builder: OpBuilder, plan_key: str, entry: Entry | None, rejected: Sequence[Rejected]
) -> dict[str, Any]:
    record: dict[str, Any] = {"name": name, "target": str(builder.target), "plan": plan_key, "hit": entry is not None}
    record |= {"rejected": [candidate._asdict() for candidate in rejected], "nearest": None}
    return record | ({"path": entry.library, "origin": entry.origin} if entry else {})


def _nearest_record(near: Nearest) -> dict[str, Any]:
    return {
        "result": near.entry.key,
        "path": near.entry.path,
        "built": near.entry.built,
        "components": [difference._asdict() | {"text": describe(difference)} for difference in near.components],
        "files": [file._asdict() for file in near.files],
    }


def describe(difference: Difference) -> str:
    """Returns one difference in words: what was added to and removed from a list, or the old and the new value."""
    name, stored, now = difference.component, difference.stored, difference.now
    if isinstance(stored, list) and isinstance(now, list):
        added = [_text(value) for value in now if value not in stored]
        removed = [_text(value) for value in stored if value not in now]
        parts = [f"{word} {' '.join(values)}" for word, values in (("added", added), ("removed", removed)) if values]
        return f"{name}: {', '.join(parts) or 'the order has changed'}"
    if stored is None:
        return f"{name}: is new: {_text(now)}"
    return f"{name}: was {_text(stored)}" + ("" if now is None else f", is {_text(now)}")


def _text(value: Any) -> str:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value):
        return "=".join(value) if value[1] else value[0]
    return str(value)


def _print(record: dict[str, Any]) -> None:
    label = f"{record['name']} for {record['target']}"
    if record.get("note"):
        messages.show("note", f"{label}: {record['note']}")
    if record["hit"]:
        click.echo(f"hit: {label}, {record['path']}")
        if "tuned" in record:
            tuned_names.show_choice(record["name"], record["tuned"])
        return
    click.echo(f"miss: {label}, plan {record['plan'] or 'unknown'}")
    for rejected in record["rejected"]:
        click.echo(f"  rejected {rejected['where']}: {rejected['reason']}")
    if record.get("remote"):
        click.echo(f"  would be fetched from {record['remote']}")
    if "problem" in record:
        click.echo(f"  {record['problem']}")
        return
    near = record["nearest"]
    if near is None:
        click.echo("  no entry of this op is stored: it was not built here yet, or was evicted")
        return
    click.echo(f"  nearest entry, built {age_text(time.time() - near['built'])} ago: {near['path']}")
    for component in near["components"]:
        click.echo(f"    {component['text']}")
    for file in near["files"]:
        digests = f" ({file['stored'][:12]}, now {file['now'][:12]})" if file["stored"] and file["now"] else ""
        click.echo(f"    {file['path']} {file['problem']}{digests}")
