"""`opforge report`: the state of this machine, and of each op: ready, cached, fetchable, buildable or unusable."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

import opforge

from .guard import FAILED, OK, Guarded, json_option
from .output import counted, emit_json, heading, show_table, size_text


@click.command("report", cls=Guarded)
@click.option("--all", "shows_all", is_flag=True, help="Show absent parts too, capabilities, and all paths.")
@click.option(
    "--machine",
    is_flag=True,
    help="Print the facts that choose variants, for `opforge install --for --dry-run`.",
)
@json_option
def command(shows_all: bool, machine: bool, as_json: bool) -> None:
    """Show what is usable here, what needs attention and how to fix it, and for every op whether it can be loaded.

    An op is ready (prebuilt), cached, fetchable (a remote has it), buildable (load() would build it), or unusable,
    with the reasons. The exit code is 1 if an op is unusable, or if no accelerator, torch, compiler or cache folder
    can be used.

    \b
    Examples:
      opforge report
      opforge report --all
      opforge report --json
      opforge report --machine > machine.json
    """
    if machine:
        from opforge.packages.choose import environment

        emit_json(environment.here(["all"]).to_json())
        return
    if not as_json:  # before torch is imported, which takes seconds
        click.echo(f"opforge {opforge.__version__}, {_folder()}")
        sys.stdout.flush()
    report = gather(functools.partial(_print_environment, shows_all) if not as_json else None)
    if as_json:
        emit_json(report)
    else:
        _print(report, shows_all)
    sys.exit(OK if report["ok"] else FAILED)


def _folder() -> str:
    return os.path.dirname(os.path.abspath(opforge.__file__))


def gather(show_environment: Callable[[Mapping[str, Any]], None] | None = None) -> dict[str, Any]:
    """Returns the whole report, JSON-able. `show_environment` gets what needs no torch, before it is imported."""
    from opforge.report import machine, ops, summary

    report: dict[str, Any] = {"opforge": {"version": opforge.__version__, "path": _folder()}}
    report |= machine.environment()
    report["compilers"] = machine.compilers()
    report["cache"] = machine.cache()
    if show_environment:
        show_environment(report)
    report["accelerators"] = machine.accelerators()
    report["ops"], report["ops_problem"], report["ops_left_out"] = [], "", []
    devices = () if report["accelerators"]["in_use"] else ("cpu",)
    try:
        report["ops"] = [ops.readiness(offer)._asdict() for offer in ops.offers(devices)]
        report["ops_left_out"] = ops.offer_problems(devices)
    except Exception as error:  # a broken builder package: the rest of the report helps to fix it
        report["ops_problem"] = f"{type(error).__name__}: {error}"
    if not report["cache"]["problem"] and any(op["state"] == "buildable" for op in report["ops"]):
        report["cache"]["problem"] = machine.unwritable_cache()  # where all is built, it need not be
    report["remotes"] = machine.remotes()  # after the ops, for which they were asked
    report["aio"] = summary.aio_engines(report["ops"])
    report["host_only"] = summary.host_only(report)
    report["attention"] = summary.attention(report)
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


def _print_environment(shows_all: bool, report: Mapping[str, Any]) -> None:
    """Prints the parts of the report that need no torch, whose import takes seconds."""
    python, torch = report["python"], report["torch"]
    click.echo(f"Python {python['version']} ({python['tag']}), {python['path']}")
    click.echo(torch["problem"] if "problem" in torch else f"torch {torch['version']}, {torch['path']}")
    _print_compilers(report["compilers"], shows_all)
    _print_cache(report["cache"])
    sys.stdout.flush()


def _print(report: Mapping[str, Any], shows_all: bool) -> None:
    from opforge.report import summary

    accelerators = report["accelerators"]
    heading("summary")
    in_use, others = accelerators["in_use"] or {}, _others(accelerators)
    chosen = f"{in_use['name']} in use, target {in_use['target']}" if in_use else "none in use"
    click.echo(f"accelerator: {chosen}" + (f"; also usable: {', '.join(others)}" if others else ""))
    click.echo(f"ops: {summary.states(report)}")
    _print_engines(report["aio"]["engines"])
    click.echo("needs attention: " + (str(len(report["attention"])) if report["attention"] else "nothing"))
    for problem in report["attention"]:
        click.echo(f"problem: {problem}")
    if shows_all:
        _print_accelerators(accelerators)
    for remote in report["remotes"]:
        use = ", to which this machine publishes" if remote["publishes"] else ""
        click.echo(f"remote: {remote['url']}{use}")
    heading("ops")
    columns = (
        ("OP", "ACCELERATOR", "TARGET", "STATE", "REASONS OR PATH") if shows_all else ("OP", "ACCELERATOR", "STATE")
    )
    show_table(columns, [_op_row(op, shows_all) for op in report["ops"]])
    if report["host_only"]:
        names = ", ".join(report["host_only"])
        click.echo(f"\nfor tensors on the CPU alone, {in_use['name']} has none of them: {names}")
    absent = [item["name"] for item in accelerators["candidates"] if not item["available"]]
    if absent and not shows_all:
        click.echo(f"\nnot usable here: {', '.join(absent)}. For the reasons, and for paths: opforge report --all")


def _op_row(op: Mapping[str, Any], shows_all: bool) -> tuple[str, ...]:
    if not shows_all:
        return op["name"], op["accelerator"], op["state"]
    return op["name"], op["accelerator"], op["target"], op["state"], "; ".join(op["reasons"]) or op["path"]


def _others(accelerators: Mapping[str, Any]) -> list[str]:
    """Returns the other accelerators that could be used. What `null` is for is in its reason."""
    in_use = (accelerators["in_use"] or {}).get("name")
    usable = [item for item in accelerators["candidates"] if item["available"] and item["reason"] == "available"]
    return [item["name"] for item in usable if item["name"] != in_use]


def _print_engines(engines: Mapping[str, str]) -> None:
    """Prints which engines AsyncIO can use, and why it cannot use the others."""
    if engines:
        usable = [name for name, reason in engines.items() if not reason]
        others = "".join(f"; {name} cannot be used: {reason}" for name, reason in engines.items() if reason)
        click.echo(f"asynchronous files: {', '.join(usable) or 'none'}{others}")


def _print_compilers(compilers: Sequence[Mapping[str, Any]], shows_all: bool) -> None:
    heading("compilers")
    shown = [compiler for compiler in compilers if shows_all or not compiler.get("missing")]
    show_table(
        ("TOOLCHAIN", "VERSION", "PATH"),
        [
            (compiler["name"], "see problem" if compiler["problem"] else compiler["version"], compiler["path"])
            for compiler in shown
        ],
    )
    if len(shown) < len(compilers):
        names = [compiler["name"] for compiler in compilers if compiler not in shown]
        click.echo(f"not installed: {', '.join(names)}")


def _print_accelerators(accelerators: Mapping[str, Any]) -> None:
    heading("accelerators")
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
    for layer in cache["layers"]:
        click.echo(f"layer: {layer}" + ("" if os.path.isdir(layer) else " (there is no such folder)"))
