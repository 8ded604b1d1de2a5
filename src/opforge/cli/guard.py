"""How every command ends: errors as one message or as JSON, the exit code, Ctrl-C."""

from __future__ import annotations

from typing import Any

import click

from opforge.errors import OpforgeError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
EXIT_CODES = "Exit codes: 0 all is well, 1 something failed or is missing, 2 wrong usage, 130 interrupted."


class Guarded(click.Command):
    """A command that ends with a message, never with a traceback, where the error is one of opforge's own."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OpforgeError as error:
            end_with(ctx, type(error).__name__, str(error), FAILED)
        except click.UsageError as error:
            if not ctx.params.get("as_json"):
                raise
            end_with(ctx, "UsageError", error.format_message(), USAGE)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


class GuardedGroup(Guarded, click.Group):
    """A group of such commands."""


def end_with(ctx: click.Context, kind: str, message: str, code: int) -> None:
    """Say what went wrong and leave: as JSON on standard output where that was asked for, else on standard error."""
    if ctx.params.get("as_json"):
        from .output import emit_json

        emit_json({"error": kind, "message": message})
    else:
        click.echo(f"error: {message}", err=True)
    ctx.exit(code)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
