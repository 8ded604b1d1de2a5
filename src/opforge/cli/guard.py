"""How every command ends: an error as one message or as JSON, the exit code, Ctrl-C."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, Any, NoReturn

import click

from opforge.errors import OpforgeError

from . import messages

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
EXIT_CODES = "Exit codes: 0 success, 1 something failed or is missing, 2 wrong usage, 130 interrupted."


class OutputError(OSError):
    """Standard output cannot be written."""


class Output(io.FileIO):
    """Standard output, with an error of its own: the disk of a redirected output may be full, and no other one."""

    def write(self, data: Any, /) -> int:
        """Writes, and returns the number of bytes. Raises OutputError, BrokenPipeError if the reader is gone."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.errno, f"standard output cannot be written: {error.strerror}") from error


def run(command: click.Command, name: str) -> None:
    """Runs a command and exits. If its output cannot be written, that is one message."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout is sys.__stdout__:
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(Output(sys.stdout.fileno(), "w", closefd=False)),
            encoding=sys.stdout.encoding,
            errors=sys.stdout.errors,
            line_buffering=sys.stdout.line_buffering,
            write_through=sys.stdout.write_through,
        )
    try:
        command(prog_name=name)
    except OutputError as error:
        messages.show_error(str(error.strerror))
        # Python writes what is left in the buffer when it ends. If that failed, it would print a traceback of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)


class Guarded(click.Command):
    """A command that prints opforge's own errors as a message, without a traceback."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("epilog", EXIT_CODES)
        super().__init__(*arguments, **options)
        if not isinstance(self, click.Group):
            self.params += [quiet_option(), verbose_option()]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parses the arguments. Raises StyledUsageError; with --json prints it and exits."""
        as_json = "--json" in args and any(parameter.name == "as_json" for parameter in self.params)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if not as_json or error.ctx is None:
                raise with_style(error) from None
            error.ctx.params["as_json"] = True  # parsing stopped, perhaps before it reached --json
            end_with_error(error.ctx, "UsageError", error.format_message(), USAGE)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments. An error has the context, which click leaves out for an option without its value."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command and returns its result. Ends with a message on opforge's own errors and on Ctrl-C."""
        try:
            if not isinstance(self, click.Group):
                _warn_of_settings(ctx)
            return super().invoke(ctx)
        except OpforgeError as error:
            end_with_error(ctx, type(error).__name__, error, FAILED)
        except click.UsageError as error:
            if not ctx.params.get("as_json"):
                raise with_style(error) from None
            end_with_error(ctx, "UsageError", error.format_message(), USAGE)
        except OSError as error:
            if error.errno == errno.EPIPE or isinstance(error, OutputError):
                raise  # the reader of our output is gone: click exits without a message. For the other, see `run`
            end_with_error(ctx, type(error).__name__, _without_folder(error) or str(error), FAILED)
        except MemoryError:
            end_with_error(ctx, "MemoryError", "memory ran out: end other processes, or raise `ulimit -v`", FAILED)
        except (KeyboardInterrupt, click.Abort) as error:
            if isinstance(error, click.Abort) and not isinstance(error.__context__, KeyboardInterrupt):
                raise  # the answer to a question is no, or there is none; click makes the same error of Ctrl-C
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


class GuardedGroup(Guarded, click.Group):
    """A group of such commands. Its help does not shorten their summaries; a mistyped name brings the nearest one."""

    moved: Mapping[str, str] = MappingProxyType({})
    """Words that are not commands of the group -> the command to type instead."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the name of the command, the command, and its arguments. Raises click.UsageError."""
        names = self.list_commands(ctx)
        if args[0] in self.moved:
            ctx.fail(f"No such command {args[0]!r}. It is: {self.moved[args[0]]}")
        if args[0] not in names:
            from difflib import get_close_matches

            for near in get_close_matches(args[0], names, n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near!r}?")
        return super().resolve_command(ctx, args)

    def help_lines(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Returns the name of each command and its line in the help."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [(name, command.get_short_help_str(limit=1000)) for name, command in commands if command]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(self.help_lines(ctx))


class StyledUsageError(click.UsageError):
    """A usage error that begins with `error:`, as all other errors do. Click's own begin with `Error:`."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Prints the usage line and the message."""
        if self.ctx is not None:
            usage, path = self.ctx.get_usage(), self.ctx.command_path
            click.echo(f"{usage}\nTry '{path} --help' for help.\n", file=file, err=True)
        messages.show_error(self.format_message())


def with_style(error: click.UsageError) -> click.UsageError:
    """Returns the error as a StyledUsageError. Click prints the help in place of NoArgsIsHelpError: it stays."""
    if isinstance(error, (StyledUsageError, getattr(click.exceptions, "NoArgsIsHelpError", StyledUsageError))):
        return error
    return StyledUsageError(error.format_message(), error.ctx)


class FolderPath(click.Path):
    """The type of an option that names a folder. An empty text, of a variable that is not set, would be this folder."""

    def __init__(self) -> None:
        super().__init__(file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path. Raises click.BadParameter."""
        return super().convert(value, param, ctx) if value else self.fail("it is empty: name a folder", param, ctx)


def quiet_option() -> click.Option:
    """Returns the option -q."""
    text = "Print neither notes, nor warnings, nor progress."
    return click.Option(["-q", "--quiet"], is_flag=True, expose_value=False, callback=messages.set_verbosity, help=text)


def verbose_option() -> click.Option:
    """Returns the option -v."""
    text = "Print more: each look-up with its reason, internals, whole tracebacks."
    return click.Option(
        ["-v", "--verbose"], is_flag=True, expose_value=False, callback=messages.set_verbosity, help=text
    )


def _without_folder(error: OSError) -> str:
    """Returns what to say of an error that comes from a removed working folder; empty for others."""
    if error.errno != errno.ENOENT or (error.filename is not None and os.path.isabs(error.filename)):
        return ""
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the working folder was removed: change to another folder"
    return ""


def _warn_of_settings(ctx: click.Context) -> None:
    """Prints a warning for each setting that does nothing. With --json nothing is printed."""
    from opforge.foundation.settings import misspelt

    for text in () if ctx.params.get("as_json") else misspelt.problems():
        messages.show("warning", text)


def end_with_error(ctx: click.Context, kind: str, message: Exception | str, code: int) -> NoReturn:
    """Ends the command with this exit code and message: as JSON on standard output with --json, else on stderr."""
    if ctx.params.get("as_json"):
        from .output import emit_json

        emit_json({"error": kind, "message": str(message)})
    else:
        messages.show_error(message)
        if isinstance(message, Exception) and messages.verbosity() == messages.VERBOSE:
            import traceback

            click.echo("".join(traceback.format_exception(message)), err=True, nl=False)
    ctx.exit(code)


def error_text(error: Exception) -> str:
    """Returns the message of an error that stops one op only; one that is not opforge's has its class before it."""
    return str(error) if isinstance(error, OpforgeError) else f"{type(error).__name__}: {error}"


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
