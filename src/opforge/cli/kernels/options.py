"""Options that several commands about packages have."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opforge.cli import messages
from opforge.cli.guard import FolderPath

if TYPE_CHECKING:
    from opforge.packages.installed.layout import Root
    from opforge.packages.registry.selection import Verified

F = TypeVar("F", bound=Callable[..., Any])


def into_options(command: F) -> F:
    """Adds --into and --user."""
    command = click.option("--user", is_flag=True, help="For this user, in every environment.")(command)
    return click.option(
        "--into",
        type=FolderPath(),
        help="Into this folder, to be named in OPFORGE_KERNEL_PATH; by default into this environment.",
    )(command)


def remote_option(command: F) -> F:
    """Adds --remote."""
    return click.option(
        "--remote",
        "urls",
        multiple=True,
        metavar="URL",
        help="This remote, in place of OPFORGE_REMOTES. Repeatable.",
    )(command)


def show_unsigned(chosen: Sequence[Verified]) -> None:
    """Prints the warnings about unsigned and missing parts of the chosen releases."""
    for kind, text in dict.fromkeys(line for verified in chosen for line in verified.notes):
        messages.show(kind, text)


def is_folder(kernel: str) -> bool:
    """Returns whether an argument names a folder: a bare ORG/NAME is a package, whatever the working folder holds.

    What is in a folder is signed by nobody. Raises KernelFormatError for what can only be a path, and is no folder.
    """
    from opforge.errors import KernelFormatError
    from opforge.packages.form import names

    is_path = kernel.startswith((".", "/", "~")) or kernel.endswith("/")
    if is_path and not os.path.isdir(kernel):
        raise KernelFormatError(kernel, "there is no such folder", "one that opforge pack has written, or ORG/NAME")
    return os.path.isdir(kernel) and not names.is_name(kernel)


def root_of(into: str | None, user: bool) -> Root:
    """Returns the folder that packages are installed in. Raises click.UsageError."""
    from opforge.packages.installed import layout

    if into and user:
        raise click.UsageError("--into and --user exclude each other")
    if into:
        return layout.Root(os.path.abspath(into), "folder")
    return layout.user_root() if user else layout.environment_root()
