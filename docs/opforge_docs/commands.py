"""The reference of the commands, from click: what `--help` shows, as Markdown.

`python docs/opforge_docs/commands.py` writes README's table of commands.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from opforge.cli import COMMANDS, SECTIONS, group

README = Path(__file__).resolve().parents[2] / "README.md"
COMMON = {"--quiet", "--verbose", "--help", "--json", "--version"}
"""Options that every command has, or nearly every one: the page describes them once. All of them take no value."""
CHOICES = re.compile(r" \[([^\]]+\|[^\]]+)\]$")
"""The values of an option, in the words by which --help names it."""


def reference() -> str:
    """Returns the sections of all commands, in the order of their names."""
    return "\n".join(line for ctx in _commands(group, "opforge", None) for line in _section(ctx))


def table() -> str:
    """Returns README's table: each command with those of its group, and its line of `opforge --help`, by sections."""
    ctx = click.Context(group, info_name="opforge")
    rows = ["| command | what it does |", "| -- | -- |"]
    for title, names in SECTIONS.items():
        rows += [f"| **{title}** |  |", *(f"| {_calls(name, ctx)} | {COMMANDS[name][1]} |" for name in names)]
    return "\n".join(rows) + "\n"


def _calls(name: str, parent: click.Context) -> str:
    """Returns how a command is called: `opforge NAME`, or `opforge NAME FIRST`, `SECOND`, ... for those of a group."""
    command = group.get_command(parent, name)
    if not isinstance(command, click.Group):
        return f"`{name}`" if name == "build-ops" else f"`opforge {name}`"
    first, *others = command.list_commands(parent)
    return ", ".join([f"`opforge {name} {first}`", *(f"`{other}`" for other in others)])


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


def main() -> None:
    """Writes the table into README.md."""
    page = README.read_text()
    before, _, rest = page.partition("| command | what it does |\n")
    after = re.sub(r"\A(?:\|.*\n)+", "", rest)
    README.write_text(before + table() + after)


if __name__ == "__main__":
    main()
