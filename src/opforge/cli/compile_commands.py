"""`opforge compile-commands`: how each source of an op is compiled, in the format that clangd reads."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from opforge.accelerator.target import Target
from opforge.builders.declaration.abi import TORCH_HEADERS
from opforge.errors import SettingError

from . import messages
from .completion import names as completed_names
from .guard import FAILED, OK, Guarded, error_text, json_option
from .output import OutputFile, counted, emit_json
from .selection import Selected, all_targets, select, target_option

GCC_ONLY = frozenset({"-fno-gnu-unique"})
"""Options that clang does not know: clangd reports one as an error in every file."""


@click.command("compile-commands", cls=Guarded)
@click.argument("ops", nargs=-1, metavar="[OP]...", shell_complete=completed_names.ops)
@target_option
@click.option(
    "--output",
    "-o",
    default="compile_commands.json",
    show_default=True,
    type=OutputFile(dir_okay=False, allow_dash=True),
    help="The file to write, or - for standard output.",
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
    commands: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    for op in select(ops, all_targets(targets, levels)):
        try:
            commands += _commands(op, folder)
        except Exception as error:  # a broken builder must not keep the other ops out of the file
            failed.append({"name": op.name, "error": type(error).__name__, "message": error_text(error)})
    text = json.dumps(commands, indent=1) + "\n"
    if output == "-":
        click.echo(text, nl=False)
    else:
        _write(output, text)
    if as_json and output != "-":
        emit_json({"output": os.path.abspath(output), "commands": len(commands), "failed": failed})
    elif output != "-":
        click.echo(f"{counted(len(commands), 'command', 'commands')} in {output}")
    for failure in failed if not as_json or output == "-" else ():
        messages.show_error(failure["message"], f"{failure['name']}: ")
    sys.exit(FAILED if failed else OK)


def _commands(op: Selected, folder: str) -> list[dict[str, Any]]:
    """Returns the commands that compile an op, as clangd's file lists them. Raises what `planned` raises."""
    from opforge.report.ops import planned

    build = planned(op.builder(), look_up=False)
    # A build on the facade has a folder of links to parts of it.
    headers = os.path.join(build.root_paths.get("torch", ""), "include")
    return [
        {
            "directory": folder,
            "file": step.inputs[0],
            "arguments": [headers if word == TORCH_HEADERS else word for word in _arguments(step.argv, build.compiler)],
            "output": step.output,
        }
        for step in build.steps
        if step.unit
    ]


def _arguments(argv: Sequence[str], compiler: str) -> list[str]:
    """Returns the command without its launcher (ccache, ...): clangd takes the first word for the compiler."""
    start = argv.index(compiler) if compiler in argv else 0
    return [argument for argument in argv[start:] if argument not in GCC_ONLY]


def _write(path: str, text: str) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        raise SettingError("--output", path, f"a writable file ({error.strerror})") from error
