"""`opforge compile-commands`: how each source of an op is compiled, in the form that clangd reads."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from opforge.accelerator.target import Target
from opforge.errors import OpforgeError, SettingError

from .guard import FAILED, OK, Guarded, json_option
from .output import emit_json
from .selection import Selected, all_targets, select, target_option

GCC_ONLY = frozenset({"-fno-gnu-unique"})
"""clangd reports an option that clang does not know as an error in every file."""


@click.command("compile-commands", cls=Guarded)
@click.argument("ops", nargs=-1, metavar="[OP]...")
@target_option
@click.option(
    "--output",
    "-o",
    default="compile_commands.json",
    show_default=True,
    type=click.Path(dir_okay=False, allow_dash=True),
    help="The file to write; - for standard output.",
)
@json_option
def command(ops: Sequence[str], targets: Sequence[Target], levels: Sequence[str], output: str, as_json: bool) -> None:
    """Write compile_commands.json, so that clangd understands the sources of ops.

    OP is as for build-ops. Without OP, the file covers every op that is offered here.

    \b
    Examples:
      opforge compile-commands my_package.ops:ReluBuilder
    """
    folder = os.path.dirname(os.path.abspath(output))
    answers = [(one.name, *_commands(one, folder)) for one in select(ops, all_targets(targets, levels))]
    commands = [one for _name, found, _error in answers for one in found]
    failed = [{"name": name} | error for name, _found, error in answers if error]
    text = json.dumps(commands, indent=1) + "\n"
    if output == "-":
        click.echo(text, nl=False)
    else:
        _write(output, text)
    if as_json and output != "-":
        emit_json({"output": os.path.abspath(output), "commands": len(commands), "failed": failed})
    elif output != "-":
        click.echo(f"{len(commands)} commands in {output}")
    for one_failed in failed if not as_json or output == "-" else ():
        click.echo(f"error: {one_failed['name']}: {one_failed['message']}", err=True)
    sys.exit(FAILED if failed else OK)


def _commands(one: Selected, folder: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The commands that compile an op, or why there are none."""
    from opforge.report.ops import planned

    try:
        known = planned(one.builder(), look_up=False)
    except Exception as error:  # a broken builder is not to keep the others from the editor
        told = str(error) if isinstance(error, OpforgeError) else f"{type(error).__name__}: {error}"
        return [], {"error": type(error).__name__, "message": told}
    compiling = [step for step in known.steps if step.unit]
    return [
        {
            "directory": folder,
            "file": step.inputs[0],
            "arguments": _arguments(step.argv, known.compiler),
            "output": step.output,
        }
        for step in compiling
    ], {}


def _arguments(argv: Sequence[str], compiler: str) -> list[str]:
    """The command without its launcher (ccache, ...), as clangd takes the first word for the compiler."""
    start = argv.index(compiler) if compiler in argv else 0
    return [argument for argument in argv[start:] if argument not in GCC_ONLY]


def _write(path: str, text: str) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        raise SettingError("--output", path, f"a file that can be written ({error.strerror})") from error
