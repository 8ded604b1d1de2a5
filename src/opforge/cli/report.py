"""`opforge report`: what is on this machine, and whether each op is ready, cached, fetchable, buildable or unusable."""

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
@click.option("--machine", is_flag=True, help="Print what packages are judged by, for `opforge resolve --for`.")
@json_option
def command(machine: bool, as_json: bool) -> None:
    """Show accelerators, compilers, the cache and versions, and for every op whether it can be loaded.

    An op is ready (prebuilt), cached, fetchable (a remote has it), buildable (load() would build it), or unusable,
    with the reasons. The exit code is 1 if an op is unusable, or if no accelerator, torch, compiler or cache folder
    can be used.

    \b
    Examples:
      opforge report
      opforge report --json
      opforge report --machine > machine.json
    """
    if machine:
        from opforge.packages.choose import environment

        emit_json(environment.here(["all"]).to_json())
        return
    report = gather()
    if as_json:
        emit_json(report)
    else:
        _print(report)
    sys.exit(OK if report["ok"] else FAILED)


def gather() -> dict[str, Any]:
    """Returns the whole report, JSON-able."""
    from opforge.report import machine, ops

    folder = os.path.dirname(os.path.abspath(opforge.__file__))
    report: dict[str, Any] = {"opforge": {"version": opforge.__version__, "path": folder}}
    report |= machine.environment()
    report["accelerators"] = machine.accelerators()
    report["compilers"] = machine.compilers()
    report["cache"] = machine.cache()
    report["ops"], report["ops_problem"], report["ops_left_out"] = [], "", []
    devices = () if report["accelerators"]["in_use"] else ("cpu",)
    try:
        report["ops"] = [ops.readiness(offer)._asdict() for offer in ops.offers(devices)]
        report["ops_left_out"] = ops.offer_problems(devices)
    except Exception as error:  # a broken builder package: the rest of the report helps to fix it
        report["ops_problem"] = f"{type(error).__name__}: {error}"
    report["remotes"] = machine.remotes()  # after the ops, for which they were asked
    problems = [
        report["torch"].get("problem"),
        report["cache"]["problem"],
        report["ops_problem"],
        *report["ops_left_out"],
        *report["accelerators"]["problems"],
        *(compiler["problem"] for compiler in report["compilers"]),
    ]
    report["ok"] = not any(problems) and all(op["state"] != "unusable" for op in report["ops"])
    return report


def _print(report: Mapping[str, Any]) -> None:
    python, torch = report["python"], report["torch"]
    click.echo(f"opforge {report['opforge']['version']}, {report['opforge']['path']}")
    click.echo(f"Python {python['version']} ({python['tag']}), {python['path']}")
    click.echo(torch["problem"] if "problem" in torch else f"torch {torch['version']}, {torch['path']}")
    _print_accelerators(report["accelerators"])
    heading("compilers")
    show_table(
        ("TOOLCHAIN", "VERSION", "PATH"),
        [
            (compiler["name"], compiler["problem"] or compiler["version"], compiler["path"])
            for compiler in report["compilers"]
        ],
    )
    _print_cache(report["cache"])
    for remote in report["remotes"]:
        use = ", to which this machine publishes" if remote["publishes"] else ""
        problem = f": {remote['problem']}" if remote["problem"] else ""
        click.echo(f"remote: {remote['url']}{use}{problem}")
    heading("ops")
    if report["ops_problem"]:
        click.echo(f"problem: {report['ops_problem']}")
    for problem in report["ops_left_out"]:
        click.echo(f"problem: {problem}")
    show_table(
        ("OP", "ACCELERATOR", "TARGET", "STATE", "REASONS OR PATH"),
        [
            (op["name"], op["accelerator"], op["target"], op["state"], "; ".join(op["reasons"]) or op["path"])
            for op in report["ops"]
        ],
    )


def _print_accelerators(accelerators: Mapping[str, Any]) -> None:
    heading("accelerators")
    for problem in accelerators["problems"]:
        click.echo(f"problem: {problem}")
    in_use = (accelerators["in_use"] or {}).get("name")
    rows = []
    for candidate in accelerators["candidates"]:
        usable = "in use" if candidate["name"] == in_use else "yes" if candidate["available"] else "no"
        rows.append((candidate["name"], usable, candidate["reason"], candidate["source"]))
    show_table(("ACCELERATOR", "USABLE", "REASON", "FROM"), rows)
    if accelerators["capabilities"]:
        heading(f"capabilities of {in_use}, target {accelerators['in_use']['target']}")
        capabilities = [(name, _value(name, value)) for name, value in accelerators["capabilities"].items()]
        show_table(("CAPABILITY", "VALUE"), capabilities)


def _value(name: str, value: Any) -> str:
    if value is None or value == []:
        return "none"
    if name == "total_memory":
        return size_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _print_cache(cache: Mapping[str, Any]) -> None:
    heading("cache")
    source = cache["source"] or "the default"
    content = "does not exist yet"
    if cache["exists"]:
        content = f"{counted(cache['entries'], 'entry', 'entries')}, {size_text(cache['bytes'])}"
    click.echo(f"{cache['path']} ({source}): {content}")
    if cache["problem"]:
        click.echo(f"problem: {cache['problem']}")
    for layer in cache["layers"]:
        click.echo(f"layer: {layer}" + ("" if os.path.isdir(layer) else " (there is no such folder)"))
