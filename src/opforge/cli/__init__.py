"""The command line. Each command is an entry in COMMANDS and a file of its own, imported when the command runs."""

from __future__ import annotations

import importlib
import io
import os
import sys
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import click

import opforge

from .guard import GuardedGroup, run

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "bench": ("opforge.cli.bench:command", "Measure ops beside their rivals and a baseline; compare runs."),
    "build-ops": ("opforge.cli.prebuild.command:command", "Build ops ahead of time. Also a command of its own."),
    "cache": ("opforge.cli.cache.commands:group", "Explain a miss; count hits; pin built ops."),
    "check": ("opforge.cli.check:command", "Check each op on this machine's devices against its reference."),
    "completion": ("opforge.cli.completion.shells:command", "Print the script that completes words in a shell."),
    "compile-commands": ("opforge.cli.compile_commands:command", "Write compile_commands.json, for clangd."),
    "config": ("opforge.cli.config:command", "Show every setting in force, and where it comes from."),
    "fetch": ("opforge.cli.remote.fetch:command", "Fetch ops from the remotes before a job starts."),
    "gc": ("opforge.cli.gc:command", "Remove entries over the limits, and files that nothing needs."),
    "inspect": ("opforge.cli.inspect:command", "Show what a built op contains: kernels, registers, sizes, needs."),
    "install": ("opforge.cli.kernels.install:install", "Install kernel packages, or those of a lock file."),
    "key": ("opforge.cli.remote.keys:group", "Make keys, and choose the keys whose ops are accepted."),
    "launch": ("opforge.cli.launch:command", "Run a script in several processes, bound to cores and memory."),
    "lock": ("opforge.cli.kernels.lock:command", "Write or check the lock file of a project's kernel packages."),
    "ls": ("opforge.cli.ls:command", "List built ops and packages, here or in a store."),
    "mirror": ("opforge.cli.remote.mirror:command", "Copy a store to another one."),
    "new": ("opforge.cli.new:command", "Create a project of an op or an accelerator."),
    "pack": ("opforge.cli.kernels.pack:command", "Make a package of a kernel, in the form of the Hugging Face hub."),
    "port": ("opforge.cli.port:command", "Make code for one vendor's device run on all devices."),
    "publish": ("opforge.cli.publish:command", "Sign packages and built ops, and publish them to a store."),
    "repair-wheel": ("opforge.cli.repair_wheel:command", "Copy what ops need into their wheel, by auditwheel."),
    "report": (
        "opforge.cli.report:command",
        "Show the state of this machine, and whether each op is ready, cached, buildable or unusable.",
    ),
    "rm": ("opforge.cli.rm:command", "Remove built ops and installed packages from this machine."),
    "split-wheel": ("opforge.cli.split_wheel:command", "Split a wheel with ops into one for each kind of machine."),
    "tune": ("opforge.cli.tune:command", "Time the tunable values of an op, and keep the fastest for this machine."),
    "verify": ("opforge.cli.verify:command", "Check built ops and packages, here or in a store."),
    "why-not": ("opforge.cli.why_not:command", "Show what keeps a torch extension from one binary for every torch."),
    "withdraw": ("opforge.cli.remote.withdraw:command", "Take back ops and packages that your key has signed."),
}
"""Name to "module:command" and the command's line in the help. `--help` imports none of the modules."""
SECTIONS = {
    "This machine": ("report", "check", "config", "completion", "rm"),
    "Ops and programs": (
        "new",
        "build-ops",
        "repair-wheel",
        "split-wheel",
        "fetch",
        "cache",
        "inspect",
        "bench",
        "tune",
        "compile-commands",
        "launch",
        "port",
        "why-not",
    ),
    "Kernel packages": ("pack", "install", "lock"),
    "Here, and in a store by its URL": ("ls", "verify", "gc"),
    "Stores": ("publish", "withdraw", "mirror", "key"),
}
"""Title of a section of the help -> its commands, in the order in which most users meet them."""
MOVED = {
    "info": "opforge ls URL NAME",
    "list": "opforge ls",
    "remote": "opforge publish, ls, verify, withdraw or gc, with its URL",
    "remove": "opforge rm",
    "resolve": "opforge install --dry-run",
    "unyank": "opforge withdraw --undo",
    "yank": "opforge withdraw",
}
"""Words that others use for these acts, and the ones to type here."""


class LazyGroup(GuardedGroup):
    """A group that imports a command when it runs."""

    moved = MOVED

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports and returns a command. None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = resolve_name(COMMANDS[cmd_name][0])
        return command

    def help_lines(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Returns the name of each command and its line in the help, without importing the commands."""
        return [(name, COMMANDS[name][1]) for name in self.list_commands(ctx)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands in sections, with one column for all names."""
        width = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), COMMANDS[name][1]) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns the commands and options that begin so, without importing the commands."""
        from click.shell_completion import CompletionItem

        lines = [(name, text) for name, text in self.help_lines(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=text) for name, text in lines]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(opforge.__version__, prog_name="opforge")
def group() -> None:
    """Build, cache, ship and load compiled PyTorch ops."""


def _prepare_streams() -> None:
    """Opens the null device for closed standard streams, and escapes what standard output's encoding lacks."""
    # If 0, 1 or 2 is free, the next opened file takes it, and child processes write their output into that file.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _prepare_completion(variable: str) -> None:
    """Registers our completion for bash if the shell asks for completions by this variable."""
    if variable in os.environ:
        importlib.import_module("opforge.cli.completion.shells")


def main() -> None:
    """Runs the command `opforge`."""
    _prepare_streams()
    _prepare_completion("_OPFORGE_COMPLETE")
    run(group, "opforge")


def build_ops() -> None:
    """Runs the command `build-ops`."""
    from .prebuild.command import command

    _prepare_streams()
    _prepare_completion("_BUILD_OPS_COMPLETE")
    run(command, "build-ops")
