"""The URLs of stores: their parts, and the form in which messages name them, which holds no credentials."""

from __future__ import annotations

import difflib
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from opforge.errors import StoreError

OPENING = "opening the store"
PORTS = {"http": 80, "https": 443}
CREDENTIALS = r"\A([^/]*//)(?:[^/]*|[^/\[]*:(?!\d*/).*)@"
"""What is before the host's name. A secret key may have a slash, which no URL may have there."""
PLACES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "s3": {"endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")},
    "az": {
        "account": ("AZURE_STORAGE_ACCOUNT_NAME",),
        "endpoint": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    },
}
"""Scheme -> the options that say which store it is, as each account and each endpoint may have a bucket of one name;
each with the variables that say so if the URL does not."""


class StoreUrl(NamedTuple):
    """The parts of a store's URL. `text` is what `named` returns of it."""

    scheme: str
    host: str
    port: int | None
    path: str
    options: Mapping[str, str]
    text: str


def masked(url: str) -> str:
    """Returns a URL, which may be malformed, with stars in the place of what is before the host's name."""
    return re.sub(CREDENTIALS, r"\1***@", url)


def without_credentials(url: str) -> str:
    """Returns a URL, which may be malformed, without what is before the host's name and without its query."""
    return re.sub(CREDENTIALS, r"\1", re.split(r"[?#]", url, maxsplit=1)[0])


def named(url: str) -> str:
    """Returns the URL by which messages name a store, and by which what is known of it is kept.

    It has no credentials, and of the options only PLACES.
    """
    query = urlencode([(name, without_credentials(value)) for name, value in places_of(url).items()], safe=":/")
    return without_credentials(url) + (f"?{query}" if query else "")


def places_of(url: str) -> dict[str, str]:
    """Returns the options in a URL, or else in the environment, that say which store it is."""
    parts = urlsplit(url)
    stated, variables = dict(parse_qsl(parts.query)), PLACES.get(parts.scheme.lower(), {})
    values = {
        name: stated.get(name) or next(filter(None, map(os.environ.get, names)), "")
        for name, names in variables.items()
    }
    return {name: value for name, value in values.items() if value}


def spelled(url: str) -> str:
    """Returns the one spelling of a store's URL: what is known of the store must be found by each of them."""
    parts = urlsplit(url)
    host, port = (parts.hostname or "").lower(), parts.port
    place = f"[{host}]" if ":" in host else host
    if parts.scheme.lower() == "file":
        place = ""  # file://localhost/PATH is file:///PATH
    elif port is not None and port != PORTS.get(parts.scheme.lower()):
        place += f":{port}"
    path = posixpath.normpath(f"/{quote(unquote(parts.path)).lstrip('/')}").rstrip("/")
    return urlunsplit((parts.scheme.lower(), place, path, parts.query, ""))


def resolved(url: str) -> str:
    """Returns the URL of the folder that a file:// URL leads to, without links; any other URL as it is."""
    parts = urlsplit(url)
    if parts.scheme.lower() != "file" or "%00" in parts.path:  # no folder has such a name
        return url
    return urlunsplit(parts._replace(path=quote(os.path.realpath(unquote(parts.path)))))


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns "Did you mean 'NAME'? " for the most similar of `names`; "" if none is similar."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"Did you mean {near[0]!r}? " if near else ""


def split(url: str, options: Sequence[str]) -> StoreUrl:
    """Returns the parts of a store's URL, of which `options` may be in the query. Raises StoreError."""
    text = without_credentials(url)
    if not url.isprintable() or any(character.isspace() for character in url):
        raise StoreError(repr(text), OPENING, "it has spaces or control characters", "Write them as %20 or remove them")
    address, *query = re.split(r"[?#]", url, maxsplit=1)
    if text != address or "@" in unquote("".join(query)):
        hint = "Remove them: a server's are in ~/.netrc or in the variable of ?token_env=NAME, a bucket's in variables"
        raise StoreError(text, OPENING, "credentials are in the URL", hint)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise StoreError(text, OPENING, f"it is not a URL ({error})", "Expected SCHEME://HOST/PATH") from None
    if parts.fragment:
        raise StoreError(text, OPENING, "it has a fragment, '#...'", "Remove it")
    values: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in options or name in values:
            problem = "twice" if name in values else "unknown"
            # Another text is no option that was misspelt, but may be a part of a password.
            shown = repr(name) if re.fullmatch("[A-Za-z_]{1,30}", name) else "in its query"
            expected = ", ".join(options) if options else "none"
            hint = f"{did_you_mean(name, options)}Options of {parts.scheme}:// stores: {expected}"
            raise StoreError(text, OPENING, f"the option {shown} is {problem}", hint)
        values[name] = value
    return StoreUrl(parts.scheme.lower(), parts.hostname or "", port, unquote(parts.path), values, named(url))
