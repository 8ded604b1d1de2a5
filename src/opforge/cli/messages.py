"""Errors, warnings and notes of commands, in one style: `error:`, and `hint:` in a line of its own."""

from __future__ import annotations

import logging
import os
import sys

import click

from opforge.errors.build import colored, has_colors

LABELS = {"error": "red", "warning": "yellow", "note": "cyan", "hint": "cyan"}
VERBOSITY = "opforge.verbosity"
QUIET, NORMAL, VERBOSE = -1, 0, 1


def show(kind: str, text: str) -> None:
    """Prints a message of this kind. With -q, only errors and their hints are printed."""
    if verbosity() == QUIET and kind not in ("error", "hint"):
        return
    click.echo(f"{_label(kind)} {text}", err=True)


def show_error(error: Exception | str, before: str = "") -> None:
    """Prints an error. What to do about it follows as a hint, if the error states it."""
    text, hint = _divided(error)
    show("error", before + _colored(text))
    if hint:
        show("hint", hint)


def verbosity() -> int:
    """Returns QUIET after -q, VERBOSE after -v, otherwise NORMAL."""
    ctx = click.get_current_context(silent=True)
    return ctx.find_root().meta.get(VERBOSITY, NORMAL) if ctx else NORMAL


def set_verbosity(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Keeps the choice of -q or -v. With -v, opforge's log is printed: hits, misses and their reasons."""
    if not value:
        return
    chosen = QUIET if param.name == "quiet" else VERBOSE
    ctx.find_root().meta[VERBOSITY] = chosen
    logging.getLogger("opforge").setLevel(logging.INFO if chosen == VERBOSE else logging.ERROR)


def _divided(error: Exception | str) -> tuple[str, str]:
    """Returns the message and its advice; the latter is empty if the error has none at its end."""
    text, advice = str(error), str(getattr(error, "advice", "") or "").rstrip(".")
    if advice and text.rstrip(".").endswith(advice):
        return text.rstrip(".").removesuffix(advice).rstrip(), advice
    return text, ""


def _label(kind: str) -> str:
    return click.style(f"{kind}:", fg=LABELS[kind], bold=True) if has_colors(sys.stderr) else f"{kind}:"


def _colored(text: str) -> str:
    return colored(text) if "\n" in text and has_colors(sys.stderr) else text


def shows_progress() -> bool:
    """Returns whether a line of progress can be replaced by the next one: not with -q, and on such a terminal alone."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    return is_terminal and os.environ.get("TERM") != "dumb" and verbosity() != QUIET
