"""The reference of the commands, from click: what `--help` shows, as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from opforge.cli import group

COMMON = {"--quiet", "--verbose", "--help", "--json", "--version"}
"""Options that every command has, or nearly every one: the page describes them once. All of them take no value."""
CHOICES = re.compile(r" \[([^\]]+\|[^\]]+)\]$")
"""The values of an option, in the words by which --help names it."""


def reference() -> str:
    """Returns the sections of all commands, in the order of their names."""
    return "\n".join(line for ctx in _commands(group, "opforge", None) for line in _section(ctx))


def _commands(command: click.Command, name: str, parent: click.Context | None) -> Iterator[click.Context]:
    """Yields the context of each command that can run, with those of a group in place of the group."""
    ctx = click.Context(command, info_name=name, parent=parent)
    if not isinstance(command, click.Group):
        yield ctx
        return
    for subcommand in command.list_commands(ctx):
        child = command.get_command(ctx, subcommand)
        assert child is not None
        yield from _commands(child, subcommand, ctx)


def _section(ctx: click.Context) -> Iterator[str]:
    command = ctx.command
    path = ctx.command_path.removeprefix("opforge ") if command.name == "build-ops" else ctx.command_path
    yield from (f"## `{path}`", "", "```text", f"{path} {' '.join(command.collect_usage_pieces(ctx))}", "```", "")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        lines = paragraph.splitlines()
        yield from (["```text", *lines[1:], "```"] if lines[0].strip() == "\b" else map(_escaped, lines))
        yield ""
    rows = [
        _row(*record)
        for param in command.get_params(ctx)
        if not _is_common(param) and (record := param.get_help_record(ctx)) is not None and record[1]
    ]
    if rows:
        yield from ("| option | meaning |", "| -- | -- |", *rows, "")


def _is_common(param: click.Parameter) -> bool:
    """Returns whether the page describes an option once for all commands, and not another one of such a name."""
    return not COMMON.isdisjoint(param.opts) and isinstance(param, click.Option) and param.is_flag


def _row(words: str, text: str) -> str:
    choices = CHOICES.search(words)
    if choices:
        words, text = words[: choices.start()], f"{text} One of {', '.join(choices[1].split('|'))}."
    return f"| `{words.replace('|', chr(92) + '|')}` | {_cell(text)} |"


def _cell(text: str) -> str:
    return _escaped(re.sub(r"\s+", " ", text).replace("|", "\\|"))


def _escaped(text: str) -> str:
    """Returns text of the help in which Markdown sees no markup."""
    return re.sub(r"([*_<>\[\]])", r"\\\1", text)
