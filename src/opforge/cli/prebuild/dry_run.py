"""`build-ops --dry-run`: the plan of each op, its key, and whether it is stored already."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.cli.guard import FAILED, OK
from opforge.cli.output import emit_json, time_text
from opforge.errors import OpforgeError

if TYPE_CHECKING:
    from opforge.cache.records.inputs import RootedPath
    from opforge.cli.selection import Selected

    from .run import Wishes


def show_plans(selected: Sequence[Selected], wishes: Wishes, as_json: bool) -> int:
    """Print every plan; returns the exit code."""
    told = [_plan_of(one, wishes) for one in selected]
    if as_json:
        emit_json({"ops": told, "failed": sum(one["state"] == "failed" for one in told)})
    else:
        for one in told:
            _print(one)
        if len(told) > 1:
            _print_total(told)
    return FAILED if any(one["state"] == "failed" for one in told) else OK


def _plan_of(one: Selected, wishes: Wishes) -> dict[str, Any]:
    from opforge.builders.batch import weights
    from opforge.cache.current import current_store
    from opforge.report.facts import compilers_in, planned

    told: dict[str, Any] = {"name": one.name, "target": str(one.target or ""), "state": "failed"}
    try:
        builder = one.builder(wishes.debug, wishes.sanitize, wishes.portable)
        told["target"] = str(builder.target)
        known = planned(builder, exact=True, look_up=not wishes.force)
    except Exception as error:  # as for a build: a broken builder hides no other
        named = one.named or not isinstance(error, OpforgeError) or type(error).__name__ != "OpIncompatibleError"
        reason = str(error) if isinstance(error, OpforgeError) else f"{type(error).__name__}: {error}"
        return told | {"state": "failed" if named else "skipped", "kind": type(error).__name__, "reason": reason}
    state = "would be built"
    if known.found:
        state = "cached" if known.found.origin == "cache" else "prebuilt"
    return told | {
        "state": state,
        "path": known.found.library if known.found else "",
        "key": known.plan.key,
        "abi": known.plan.abi,
        "compiler": compilers_in(dict(known.plan.toolchain)),
        "sources": [_path(where, known.places) for where in known.plan.sources],
        "include": [_path(where, known.places) for where in (*known.plan.include, *known.plan.system_include)],
        "defines": dict(known.plan.defines),
        "flags": list(known.plan.compile_flags),
        "device_flags": list(known.plan.device_flags),
        "seconds": 0.0 if known.found else weights([known.plan], current_store().layout)[0],
        "link_flags": [*known.plan.link_flags, *(f"-l{name}" for name in known.plan.libraries)],
        "commands": [list(step.argv) for step in known.steps],
    }


def _path(where: RootedPath, places: Mapping[str, str]) -> str:
    return os.path.normpath(os.path.join(places[where.root], where.path))


def _print(told: Mapping[str, Any]) -> None:
    click.echo(
        f"{told['name']} for {told['target']}: {told['state']}" + (f", {told['path']}" if told.get("path") else "")
    )
    if "reason" in told:
        click.echo(f"  {told['reason']}")
        return
    click.echo(f"  key       {told['key']}")
    click.echo(f"  compiler  {told['compiler']}, ABI {told['abi']}")
    for source in told["sources"]:
        click.echo(f"  source    {source}")
    for folder in told["include"]:
        click.echo(f"  include   {folder}")
    defines = [f"-D{name}={value}" if value else f"-D{name}" for name, value in told["defines"].items()]
    click.echo(f"  flags     {' '.join([*defines, *told['flags'], *told['link_flags']])}")
    if told["device_flags"]:
        click.echo(f"  device    {' '.join(told['device_flags'])}")


def _print_total(told: Sequence[Mapping[str, Any]]) -> None:
    states = Counter(one["state"] for one in told)
    seconds = sum(one.get("seconds", 0.0) for one in told)
    rest = f"; about {time_text(seconds)} of compiling" if seconds else ""
    click.echo(", ".join(f"{number} {state}" for state, number in states.items()) + rest, err=True)
