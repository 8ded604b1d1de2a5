"""`opforge report`: what is here, and for every op whether it is ready, cached, buildable, or why not."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import click

import opforge

from .guard import FAILED, OK, Guarded, json_option
from .output import counted, emit_json, heading, show_table, size_text


@click.command("report", cls=Guarded)
@json_option
def command(as_json: bool) -> None:
    """Say what is here: accelerators, compilers, the cache, versions; and for every op whether it can be loaded.

    An op is ready (prebuilt), cached, buildable (load() would build it), or unusable, with the reasons. The exit code
    is 1 where an op is unusable, or where no accelerator, torch, compiler or cache folder can be used.

    \b
    Examples:
      opforge report
      opforge report --json
    """
    told = gather()
    if as_json:
        emit_json(told)
    else:
        _print(told)
    sys.exit(OK if told["ok"] else FAILED)


def gather() -> dict[str, Any]:
    """All that the report says, JSON-able."""
    from opforge.report import facts

    where = os.path.dirname(os.path.abspath(opforge.__file__))
    told: dict[str, Any] = {"opforge": {"version": opforge.__version__, "path": where}}
    told |= facts.environment()
    told["accelerators"] = facts.accelerators()
    told["compilers"] = facts.compilers()
    told["cache"] = facts.cache()
    told["ops"], told["ops_problem"], told["ops_left_out"] = [], "", []
    devices = () if told["accelerators"]["in_use"] else ("cpu",)
    try:
        told["ops"] = [facts.readiness(offer)._asdict() for offer in facts.offers(devices)]
        told["ops_left_out"] = facts.refused(devices)
    except Exception as problem:  # a broken builder package: the rest of the report helps to mend it
        told["ops_problem"] = f"{type(problem).__name__}: {problem}"
    problems = [told["torch"].get("problem"), told["cache"]["problem"], told["ops_problem"]]
    problems += [
        *told["ops_left_out"],
        *told["accelerators"]["problems"],
        *(one["problem"] for one in told["compilers"]),
    ]
    told["ok"] = not any(problems) and all(one["state"] != "unusable" for one in told["ops"])
    return told


def _print(told: Mapping[str, Any]) -> None:
    torch = told["torch"]
    click.echo(f"opforge {told['opforge']['version']}, {told['opforge']['path']}")
    click.echo(f"Python {told['python']['version']} ({told['python']['tag']}), {told['python']['path']}")
    click.echo(torch["problem"] if "problem" in torch else f"torch {torch['version']}, {torch['path']}")
    _print_accelerators(told["accelerators"])
    heading("compilers")
    show_table(
        ("TOOLCHAIN", "VERSION", "PATH"),
        [(one["name"], one["problem"] or one["version"], one["path"]) for one in told["compilers"]],
    )
    _print_cache(told["cache"])
    heading("ops")
    if told["ops_problem"]:
        click.echo(f"problem: {told['ops_problem']}")
    for problem in told["ops_left_out"]:
        click.echo(f"problem: {problem}")
    show_table(
        ("OP", "ACCELERATOR", "TARGET", "STATE", "WHY OR WHERE"),
        [
            (one["name"], one["accelerator"], one["target"], one["state"], "; ".join(one["reasons"]) or one["path"])
            for one in told["ops"]
        ],
    )


def _print_accelerators(told: Mapping[str, Any]) -> None:
    heading("accelerators")
    for problem in told["problems"]:
        click.echo(f"problem: {problem}")
    in_use = (told["in_use"] or {}).get("name")
    show_table(
        ("ACCELERATOR", "USABLE", "REASON", "FROM"),
        [
            (
                one["name"],
                "in use" if one["name"] == in_use else "yes" if one["available"] else "no",
                one["reason"],
                one["source"],
            )
            for one in told["candidates"]
        ],
    )
    if told["capabilities"]:
        heading(f"capabilities of {in_use}, target {told['in_use']['target']}")
        show_table(("CAPABILITY", "VALUE"), [(name, _value(name, one)) for name, one in told["capabilities"].items()])


def _value(name: str, value: Any) -> str:
    if value is None or value == []:
        return "none"
    if name == "total_memory":
        return size_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _print_cache(told: Mapping[str, Any]) -> None:
    heading("cache")
    how = "OPFORGE_CACHE_DIR" if told["chosen"] else "the default"
    holds = (
        f"{counted(told['entries'], 'entry', 'entries')}, {size_text(told['bytes'])}"
        if told["exists"]
        else "not made yet"
    )
    click.echo(f"{told['path']} ({how}): {holds}")
    if told["problem"]:
        click.echo(f"problem: {told['problem']}")
    for layer in told["layers"]:
        click.echo(f"layer: {layer}" + ("" if os.path.isdir(layer) else " (there is no such folder)"))
