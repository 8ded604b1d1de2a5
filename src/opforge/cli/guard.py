"""How every command ends: errors as one message or as JSON, the exit code, Ctrl-C."""

from __future__ import annotations

import errno
from typing import Any, NoReturn

import click

from opforge.errors import OpforgeError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
EXIT_CODES = "Exit codes: 0 all is well, 1 something failed or is missing, 2 wrong usage, 130 interrupted."


class Guarded(click.Command):
    """A command that ends with a message, never with a traceback, where the error is one of opforge's own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("epilog", EXIT_CODES)
        super().__init__(*arguments, **options)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        as_json = "--json" in args
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if not as_json or error.ctx is None:
                raise
            error.ctx.params["as_json"] = True  # the parser may not have come so far
            end_with(error.ctx, "UsageError", error.format_message(), USAGE)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OpforgeError as error:
            end_with(ctx, type(error).__name__, str(error), FAILED)
        except click.UsageError as error:
            if not ctx.params.get("as_json"):
                raise
            end_with(ctx, "UsageError", error.format_message(), USAGE)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # nobody reads on: click ends without a word
            end_with(ctx, type(error).__name__, str(error), FAILED)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


class GuardedGroup(Guarded, click.Group):
    """A group of such commands: their first sentences are shown whole, and a mistyped one is met with the nearest."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known:
            from difflib import get_close_matches

            for near in get_close_matches(args[0], known, n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near!r}?")
        return super().resolve_command(ctx, args)

    def lines(self, ctx: click.Context) -> list[tuple[str, str]]:
        """The commands, each with what the help says of it."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [(name, command.get_short_help_str(limit=1000)) for name, command in found if command]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self.lines(ctx))


def end_with(ctx: click.Context, kind: str, message: str, code: int) -> NoReturn:
    """Say what went wrong and leave: as JSON on standard output where that was asked for, else on standard error."""
    if ctx.params.get("as_json"):
        from .output import emit_json

        emit_json({"error": kind, "message": message})
    else:
        click.echo(f"error: {message}", err=True)
    ctx.exit(code)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
