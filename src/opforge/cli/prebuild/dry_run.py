"""`build-ops --dry-run`: the plan of each op, its key, and whether the op is built already."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.cli.guard import FAILED, OK, error_text
from opforge.cli.output import emit_json, time_text
from opforge.errors import OpIncompatibleError

if TYPE_CHECKING:
    from opforge.cache.records.inputs import RootedPath
    from opforge.cli.selection import Selected

    from .run import BuildOptions


def show_plans(selected: Sequence[Selected], options: BuildOptions, as_json: bool) -> int:
    """Prints every plan and returns the exit code."""
    plans = [_plan_record(op, options) for op in selected]
    failed = sum(plan["state"] == "failed" for plan in plans)
    if as_json:
        emit_json({"ops": plans, "failed": failed})
    else:
        for plan in plans:
            _print(plan)
        if len(plans) > 1:
            _print_totals(plans)
    return FAILED if failed else OK


def _plan_record(op: Selected, options: BuildOptions) -> dict[str, Any]:
    from opforge.builders.batch import weights
    from opforge.cache.current_store import current_store
    from opforge.report.machine import compiler_versions
    from opforge.report.ops import planned

    record: dict[str, Any] = {"name": op.name, "target": str(op.target or ""), "state": "failed"}
    try:
        builder = op.builder(options.debug, options.sanitize, options.portable)
        record["target"] = str(builder.target)
        build = planned(builder, exact=True, look_up=not options.force)
    except Exception as error:  # a broken builder must not hide the other ops
        skipped = type(error) is OpIncompatibleError and not op.named
        state = "skipped" if skipped else "failed"
        return record | {"state": state, "kind": type(error).__name__, "reason": error_text(error)}
    plan, entry = build.plan, build.entry
    state = "would be fetched" if build.remote else "would be built"
    if entry:
        state = "cached" if entry.origin == "cache" else "prebuilt"
    return record | {
        "state": state,
        "path": entry.library if entry else "",
        "remote": build.remote,
        "rejected": [candidate._asdict() for candidate in build.rejected],
        "key": plan.key,
        "abi": plan.abi,
        "compiler": compiler_versions(dict(plan.toolchain)),
        "sources": [_path(source, build.root_paths) for source in plan.sources],
        "include": [_path(folder, build.root_paths) for folder in (*plan.include, *plan.system_include)],
        "defines": dict(plan.defines),
        "flags": list(plan.compile_flags),
        "device_flags": list(plan.device_flags),
        "seconds": 0.0 if entry or build.remote else weights([plan], current_store().layout)[0],
        "link_flags": [*plan.link_flags, *(f"-l{name}" for name in plan.libraries)],
        "commands": [list(step.argv) for step in build.steps],
    }


def _path(path: RootedPath, root_paths: Mapping[str, str]) -> str:
    return os.path.normpath(os.path.join(root_paths[path.root], path.path))


def _print(plan: Mapping[str, Any]) -> None:
    source = plan.get("path") or plan.get("remote")
    library = f", {source}" if source else ""
    click.echo(f"{plan['name']} for {plan['target']}: {plan['state']}{library}")
    if "reason" in plan:
        click.echo(f"  {plan['reason']}")
        return
    click.echo(f"  key       {plan['key']}")
    click.echo(f"  compiler  {plan['compiler']}, ABI {plan['abi']}")
    for source in plan["sources"]:
        click.echo(f"  source    {source}")
    for folder in plan["include"]:
        click.echo(f"  include   {folder}")
    defines = [f"-D{name}={value}" if value else f"-D{name}" for name, value in plan["defines"].items()]
    click.echo(f"  flags     {' '.join([*defines, *plan['flags'], *plan['link_flags']])}")
    if plan["device_flags"]:
        click.echo(f"  device    {' '.join(plan['device_flags'])}")


def _print_totals(plans: Sequence[Mapping[str, Any]]) -> None:
    states = Counter(plan["state"] for plan in plans)
    seconds = sum(plan.get("seconds", 0.0) for plan in plans)
    estimate = f"; about {time_text(seconds)} of compiling" if seconds else ""
    click.echo(", ".join(f"{number} {state}" for state, number in states.items()) + estimate, err=True)
