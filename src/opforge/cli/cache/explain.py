"""`opforge cache explain OP`: a hit or a miss, and for a miss everything that differs from the nearest entry."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.accelerator.target import Target
from opforge.cli.guard import FAILED, OK, Guarded, json_option
from opforge.cli.output import age_text, emit_json
from opforge.cli.selection import Selected, all_targets, mode_options, select, target_option
from opforge.errors import OpforgeError, OpIncompatibleError, ToolchainError, ToolchainNotFoundError

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder
    from opforge.cache.maintenance.explain import Difference, Nearest


@click.command("explain", cls=Guarded)
@click.argument("op")
@target_option
@mode_options
@json_option
def command(
    op: str, targets: Sequence[Target], levels: Sequence[str], debug: bool, sanitize: str, as_json: bool
) -> None:
    """Say whether OP is stored as it is now, and if not, what has changed since the nearest entry was built.

    OP is as for build-ops. The exit code is 0 for a hit and 1 for a miss.

    \b
    Examples:
      opforge cache explain CPUAdam
      opforge cache explain FusedAdam --target cuda:sm_90
    """
    told = [_explain(one, debug, sanitize) for one in select([op], all_targets(targets, levels))]
    if as_json:
        emit_json(told if len(told) > 1 else told[0])
    else:
        for one in told:
            _print(one)
    sys.exit(OK if all(one["hit"] for one in told) else FAILED)


def _explain(one: Selected, debug: bool, sanitize: str) -> dict[str, Any]:
    from opforge.builders.lookup.finder import add_other_descriptions
    from opforge.cache.current import current_store
    from opforge.cache.maintenance.explain import nearest
    from opforge.report.facts import planned

    builder, store = one.builder(debug, sanitize), current_store()
    try:
        known = planned(builder)
    except (ToolchainNotFoundError, ToolchainError, OpIncompatibleError) as problem:
        return _without_plan(one.name, builder, problem)
    rejected = list(known.rejected)
    if not known.found:
        add_other_descriptions(known.spec, store, rejected)
    told: dict[str, Any] = {"name": one.name, "target": str(builder.target), "plan": known.plan.key}
    told |= {"hit": known.found is not None, "rejected": [seen._asdict() for seen in rejected], "nearest": None}
    if known.found:
        return told | {"path": known.found.library, "origin": known.found.origin}
    near = nearest(store.layout, known.plan.op, known.plan.components(), known.places, store.disk)
    return told | {"nearest": _nearest(near) if near else None}


def _without_plan(name: str, builder: OpBuilder, problem: OpforgeError) -> dict[str, Any]:
    """What can be told where no compiler can make a plan: a prebuilt entry that serves, or why each does not."""
    from opforge.builders.lookup.finder import add_other_descriptions, search
    from opforge.cache.current import current_store
    from opforge.cache.store import Rejected

    spec, store, rejected = builder.spec(), current_store(), list[Rejected]()
    try:
        found = search(spec, store, False, None, rejected)
    except (ToolchainNotFoundError, ToolchainError, OpIncompatibleError):
        found = None  # the plan comes after the prebuilt entries, which are rejected by then
    if not found:
        add_other_descriptions(spec, store, rejected)
    told: dict[str, Any] = {"name": name, "target": str(builder.target), "plan": "", "hit": found is not None}
    told |= {"rejected": [seen._asdict() for seen in dict.fromkeys(rejected)], "nearest": None, "problem": str(problem)}
    return told | ({"path": found.library, "origin": found.origin} if found else {})


def _nearest(near: Nearest) -> dict[str, Any]:
    return {
        "result": near.entry.key,
        "path": near.entry.path,
        "built": near.entry.built,
        "components": [one._asdict() | {"text": describe(one)} for one in near.components],
        "files": [one._asdict() for one in near.files],
    }


def describe(one: Difference) -> str:
    """One difference in words: what was added to and removed from a list, or the old value and the new."""
    if isinstance(one.stored, list) and isinstance(one.now, list):
        added = [_text(value) for value in one.now if value not in one.stored]
        removed = [_text(value) for value in one.stored if value not in one.now]
        parts = [f"{word} {' '.join(values)}" for word, values in (("added", added), ("removed", removed)) if values]
        return f"{one.component}: {', '.join(parts) or 'the order has changed'}"
    if one.stored is None or one.now is None:
        return f"{one.component}: {'is new: ' + _text(one.now) if one.stored is None else 'was ' + _text(one.stored)}"
    return f"{one.component}: was {_text(one.stored)}, is {_text(one.now)}"


def _text(value: Any) -> str:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value):
        return "=".join(value) if value[1] else value[0]
    return str(value)


def _print(told: dict[str, Any]) -> None:
    label = f"{told['name']} for {told['target']}"
    if told["hit"]:
        click.echo(f"hit: {label}, {told['path']}")
        return
    click.echo(f"miss: {label}, plan {told['plan'] or 'unknown'}")
    for seen in told["rejected"]:
        click.echo(f"  looked at {seen['where']}: {seen['reason']}")
    if "problem" in told:
        click.echo(f"  {told['problem']}")
        return
    near = told["nearest"]
    if near is None:
        click.echo("  no entry of this op is stored: it has not been built here yet, or was evicted")
        return
    click.echo(f"  nearest entry, built {age_text(time.time() - near['built'])} ago: {near['path']}")
    for one in near["components"]:
        click.echo(f"    {one['text']}")
    for one in near["files"]:
        digests = f" ({one['stored'][:12]}, now {one['now'][:12]})" if one["stored"] and one["now"] else ""
        click.echo(f"    {one['path']} {one['problem']}{digests}")
