"""Stores that are named on a command line by their URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from opforge.remote.remotes import Remote
    from opforge.remote.stores.protocol import ObjectStore

url_argument = click.argument("url")
key_option = click.option("--key", "key", default="", metavar="NAME", help="Sign with this one of your key files.")


def is_url(text: str) -> bool:
    """Returns whether a word names a store, or is meant to: a path is answered by the URL that it should be."""
    return "://" in text or text.startswith(("/", "./", "../", "~"))


def split(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Returns the URL that words begin with, empty if there is none, and the others."""
    return (words[0], words[1:]) if words and is_url(words[0]) else ("", words)


def parsed(url: str, name: str = "URL") -> Remote:
    """Returns the remote of a URL, which was typed as `name`. Raises click.UsageError."""
    from opforge.errors import SettingError
    from opforge.remote import remotes

    try:
        return remotes.parse(url, name)
    except SettingError as error:
        raise click.UsageError(str(error)) from error


def opened(url: str, name: str = "URL") -> tuple[Remote, ObjectStore]:
    """Returns the remote of a URL with its store. Raises click.UsageError, StoreError."""
    from opforge.foundation import settings
    from opforge.remote.stores import open_store

    remote = parsed(url, name)
    return remote, open_store(remote.url, settings.offline())
