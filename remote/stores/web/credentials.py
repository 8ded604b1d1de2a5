"""Credentials for requests: a token from a variable, or a login of ~/.netrc. Neither is ever printed."""

from __future__ import annotations

import base64
import logging
import os
from urllib.parse import unquote

from .address import Address

log = logging.getLogger("opforge.remote")


class CredentialsError(Exception):
    """Credentials cannot be used; the message does not hold them."""


class Secret:
    """A header's value that no repr and no traceback shows."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "Secret()"

    def reveal(self) -> str:
        """Returns the value, for the header alone."""
        return self._value


def authorization(address: Address, token_variable: str, is_private: bool) -> Secret | None:
    """Returns the value of the header Authorization; None if there are no credentials for the host.

    They are sent only if nobody else can read them: `is_private`. Raises CredentialsError.
    """
    if token_variable:
        token = os.environ.get(token_variable, "").strip()
        if not token:
            raise CredentialsError(f"the variable {token_variable}, which token_env names, is not set")
        if not token.isascii() or not token.isprintable() or " " in token:
            raise CredentialsError(f"the variable {token_variable} does not hold a token: it has other characters")
        if not is_private:
            raise CredentialsError(f"a token would be sent to {address} without encryption")
        return Secret(f"Bearer {token}")
    return _login(address.host) if is_private else None


def basic(user: str, password: str) -> Secret:
    """Returns the value of the header for a user's name and password."""
    return Secret("Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())


def basic_of_url(user: str | None, password: str | None) -> Secret | None:
    """Returns the value of the header for the credentials in a proxy's URL; None if it has none."""
    return None if user is None else basic(unquote(user), unquote(password or ""))


def _login(host: str) -> Secret | None:
    path = os.environ.get("NETRC", "")
    if not path and not os.path.exists(os.path.expanduser("~/.netrc")):
        return None
    import netrc

    try:
        entry = netrc.netrc(path or None).authenticators(host)
    except netrc.NetrcParseError as error:
        # The error's own text can hold a password.
        raise CredentialsError(f"{path or '~/.netrc'} cannot be used: line {error.lineno}, or its mode") from None
    except (OSError, UnicodeError):
        log.debug("%s cannot be read, so no login is sent to %s", path or "~/.netrc", host)
        return None
    return basic(entry[0], entry[2] or "") if entry else None
