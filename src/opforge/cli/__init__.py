"""The command line. Each command is a line in a table here and a file beside this one, imported when it runs."""

from __future__ import annotations

import importlib
import io
import os
import sys

import click

import opforge

from .guard import GuardedGroup

COMMANDS = {
    "build-ops": ("opforge.cli.prebuild.command:command", "Build ops ahead of time; also a command of its own."),
    "cache": ("opforge.cli.cache.commands:group", "Look at the cache, check it, bound it, explain a miss."),
    "compile-commands": ("opforge.cli.compile_commands:command", "Write compile_commands.json, for clangd."),
    "port": ("opforge.cli.port:command", "Make code that is tied to one vendor's device run on all."),
    "launch": ("opforge.cli.launch:command", "Run a script in several processes, bound to cores and memory."),
    "inspect": ("opforge.cli.inspect:command", "Show what a built op holds: kernels, registers, sizes, needs."),
    "report": (
        "opforge.cli.report:command",
        "Say what is here, and for every op: ready, cached, buildable or why not.",
    ),
}
"""Name to "module:command" and its line in the help: the help imports none of them."""


class LazyGroup(GuardedGroup):
    """A group that imports a command when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def lines(self, ctx: click.Context) -> list[tuple[str, str]]:
        return [(name, COMMANDS[name][1]) for name in self.list_commands(ctx)]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(opforge.__version__, prog_name="opforge")
def group() -> None:
    """opforge builds, caches, ships and loads compiled PyTorch ops."""


def _prepare_streams() -> None:
    """Give closed standard streams something to be, and escape what the encoding of standard output cannot spell."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:  # else the next file would be what our children write to
        os.set_inheritable(handle, True)
    os.close(handle)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def main() -> None:
    """The command `opforge`."""
    _prepare_streams()
    group(prog_name="opforge")


def build_ops() -> None:
    """The command `build-ops`."""
    from .prebuild.command import command

    _prepare_streams()
    command(prog_name="build-ops")
