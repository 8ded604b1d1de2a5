"""The remotes in the settings: URLs with the operations that are allowed on each."""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from opforge.errors import SettingError
from opforge.foundation import settings

from .stores.urls import masked, named

EXPECTED = (
    "a URL such as https://cache.example/ops or file:///shared/ops?push=1;"
    " the options are push=1, flags=1 and unsigned=1"
)
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Remote(NamedTuple):
    """One remote and its options."""

    url: str
    """The store's URL, without the options."""
    pushes: bool = False
    """Whether what is built here is published there."""
    is_unsigned: bool = False
    """Whether offers need no signature. Only for folders and for this machine's own servers."""
    takes_flags: bool = False
    """Whether what was built with the user's own flags is published too."""

    def __str__(self) -> str:
        """Returns the URL by which the store is named: without credentials, and with few options."""
        return named(self.url)

    @property
    def is_local(self) -> bool:
        """Whether it is a folder: then reading it uses no network."""
        return urlsplit(self.url).scheme == "file"


def parse(text: str, name: str = "OPFORGE_REMOTES") -> Remote:
    """Returns the remote of one URL. Raises SettingError, which names the setting `name` and shows no credentials."""
    if text.startswith("file:"):
        text = text.replace(" ", "%20")  # a shell gives "file://$PWD/ops" so
    shown = masked(text)
    try:
        parts = urlsplit(text)
    except ValueError:
        raise SettingError(name, shown, EXPECTED) from None  # Python's own words may hold the password
    if text.startswith(("/", "./", "../", "~")):
        raise SettingError(name, shown, f"a URL: write file://{os.path.abspath(os.path.expanduser(text))}")
    if not parts.scheme or not (parts.netloc or parts.path):
        raise SettingError(name, shown, EXPECTED)
    options, others = dict[str, bool](), list[tuple[str, str]]()
    for option, value in parse_qsl(parts.query, keep_blank_values=True):
        if option not in ("push", "unsigned", "flags"):
            others.append((option, value))  # the store's own
        elif value in ("0", "1"):
            options[option] = value == "1"
        else:
            raise SettingError(name, shown, f"{option}=1 or {option}=0")
    remote = Remote(
        url=urlunsplit(parts._replace(query=urlencode(others))),
        pushes=options.get("push", False),
        is_unsigned=options.get("unsigned", False),
        takes_flags=options.get("flags", False),
    )
    if remote.is_unsigned and not (remote.is_local or parts.hostname in LOOPBACK):
        raise SettingError(name, shown, "unsigned=1 only with file:// or a server on this machine")
    if remote.is_unsigned and not remote.is_local and _has_proxy(parts):
        raise SettingError(name, shown, "unsigned=1 without a proxy, which could answer: name the host in no_proxy")
    return remote


def _has_proxy(parts: SplitResult) -> bool:
    """Returns whether the environment names a proxy that is asked for what this machine's own server has."""
    from urllib.request import getproxies_environment, proxy_bypass

    proxies, host = getproxies_environment(), re.sub(r"^.*@|[\[\]]", "", parts.netloc)
    return bool(proxies.get(parts.scheme) or proxies.get("all")) and not proxy_bypass(host)


def configured() -> list[Remote]:
    """Returns the remotes of OPFORGE_REMOTES, in order. Raises SettingError."""
    return [parse(text) for text in settings.remotes()]
