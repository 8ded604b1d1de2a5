"""Whose signatures are accepted, and for which ops: the trust file.

    {"format": 1, "revocation_days": 30, "keys": [
      {"key": "ci:BASE64", "namespaces": ["*"], "until": "2027-06-30", "revoked": ""}]}

Who can change this file decides what is loaded into the process. So its owner, its mode and every folder above it are
checked as those of a layer are.
"""

from __future__ import annotations

import fnmatch
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from opforge import limit_settings, settings
from opforge import trust as owners
from opforge.cache.filesystem import lock
from opforge.cache.filesystem.files import UNREADABLE, can_write, make_folder, read_file, write_file
from opforge.errors import SignatureError, TrustFileError

from . import signing

FORMAT = 1
REVOCATION_DAYS = 30.0
"""How old a list of revoked offers may be, unless the trust file says otherwise."""
MAX_BYTES = 1 << 20
DATE = "%Y-%m-%d"


class TrustedKey(NamedTuple):
    """A public key, and what it may sign."""

    key: signing.Named
    namespaces: tuple[str, ...] = ("*",)
    """Globs over the names of ops and packages."""
    until: str = ""
    """The last day of its use; empty for no end."""
    revoked: str = ""
    """The day on which it was revoked; empty if it was not."""

    def problem(self, now: float) -> str:
        """Returns why nothing that it signs is accepted, or an empty text."""
        if self.revoked:
            return f"the key {self.key.name} was revoked on {self.revoked}"
        if self.until and time.strftime(DATE, time.gmtime(now)) > self.until:
            return f"the key {self.key.name} ended on {self.until}"
        return ""

    def may_sign(self, name: str) -> bool:
        """Returns whether it may sign something of this name."""
        return any(fnmatch.fnmatchcase(name, glob) for glob in self.namespaces)


class Trust(NamedTuple):
    """The content of the trust file."""

    path: str
    keys: tuple[TrustedKey, ...] = ()
    revocation_days: float = REVOCATION_DAYS

    def signers(
        self, what: str, data: bytes, signatures: Sequence[signing.Named], now: float = 0.0
    ) -> list[TrustedKey]:
        """Returns the trusted keys by which the bytes are signed now.

        Nothing of the bytes is parsed. `what` names them in messages. Raises SignatureError if there is no such key,
        with the reason for each signature.
        """
        accepted, reasons = list[TrustedKey](), list[str]()
        for signature in signatures:
            keys = [trusted for trusted in self.keys if trusted.key.name == signature.name]
            if not keys:
                reasons.append(f"the key {signature.name} is not in the trust file")
            for trusted in keys:
                problem = trusted.problem(now or time.time())
                if not problem and not signing.is_signed(data, signature, trusted.key):
                    problem = f"the signature by {signature.name} is not of these bytes"
                if problem:
                    reasons.append(problem)
                else:
                    accepted.append(trusted)
        if accepted:
            return accepted
        reason = "; ".join(dict.fromkeys(reasons)) or "it has no signature"
        raise SignatureError(
            what,
            reason,
            "Get a public key from its holder, not from the remote, and run: opforge key trust NAME:KEY"
            f" (it is written to {self.path})",
        )


def allowed(signers: Sequence[TrustedKey], name: str, what: str) -> list[TrustedKey]:
    """Returns those signers that may sign something of this name. Raises SignatureError if none may."""
    accepted = [trusted for trusted in signers if trusted.may_sign(name)]
    if accepted:
        return accepted
    scopes = "; ".join(f"{trusted.key.name} may sign {', '.join(trusted.namespaces)}" for trusted in signers)
    raise SignatureError(
        what, f"no key that signed it may sign {name!r}: {scopes}", "See opforge key trust --namespace"
    )


def verify(what: str, data: bytes, signatures: Sequence[signing.Named], name: str, trust: Trust) -> TrustedKey:
    """Returns a trusted key that signed these bytes and may sign something of this name. Raises SignatureError."""
    return allowed(trust.signers(what, data, signatures), name, what)[0]


def read() -> Trust:
    """Returns the content of the trust file; without a file no key is trusted. Raises TrustFileError."""
    path = settings.trust_file()
    trusted = owners.trusted_ids(settings.trusted_owners())
    problem = owners.folder_problem(os.path.dirname(path), trusted)
    if problem:
        raise TrustFileError(path, *problem)
    try:
        status = os.stat(path)
        text = read_file(path, MAX_BYTES)
    except FileNotFoundError:
        return Trust(path)
    except (OSError, ValueError) as error:
        raise TrustFileError(path, getattr(error, "strerror", None) or str(error), "Correct or remove it") from error
    if os.path.islink(path) and (problem := owners.folder_problem(os.path.dirname(os.path.realpath(path)), trusted)):
        raise TrustFileError(path, *problem)
    if status.st_uid not in trusted or owners.others_bits(status):
        mode = f"{stat.S_IMODE(status.st_mode):o}"
        reason = f"it belongs to user {status.st_uid} and has mode {mode}, so others can change it"
        raise TrustFileError(path, reason, f"Run: chmod go-w {path}, as its owner")
    try:
        return _parse(path, json.loads(text))
    except UNREADABLE as error:
        raise TrustFileError(path, f"it is damaged ({error})", "Correct it, or write it anew") from error


def _parse(path: str, value: Any) -> Trust:
    if value["format"] != FORMAT:
        raise ValueError(f"its format is {value['format']!r}, and this opforge reads {FORMAT}")
    days = float(value.get("revocation_days", REVOCATION_DAYS))
    if not 0 < days < 36500:
        raise ValueError(f"revocation_days is {days:g}: expected a number of days")
    keys = []
    for fields in value["keys"]:
        namespaces = fields.get("namespaces", ["*"])
        if not isinstance(namespaces, list) or not all(isinstance(glob, str) for glob in namespaces):
            raise ValueError("namespaces must be a list of texts")
        key = signing.parse(fields["key"], signing.PUBLIC_BYTES)
        until, revoked = check_date(fields.get("until", "")), str(fields.get("revoked", ""))
        keys.append(TrustedKey(key, tuple(namespaces), until, revoked))
    return Trust(path, tuple(keys), days)


def check_date(text: str) -> str:
    """Returns the text, if it is empty or a day such as 2027-06-30. Raises ValueError."""
    return time.strftime(DATE, time.strptime(text, DATE)) if text else ""


@contextmanager
def held() -> Iterator[Trust]:
    """Yields the content of the trust file, which no other process changes meanwhile.

    Raises TrustFileError, LockTimeoutError.
    """
    path = read().path
    try:
        make_folder(os.path.dirname(path))
    except OSError as error:
        raise _unwritable(path, str(error.strerror)) from error
    if not can_write(os.path.dirname(path)):
        raise _unwritable(path, "its folder is read-only")
    with lock.hold(f"{path}.lock", f"the trust file {path}", limit_settings.lock_timeout()):
        yield read()


def write(trust: Trust) -> None:
    """Writes the trust file. One that others may read, such as a site's, stays readable. Raises TrustFileError.

    What depends on the file's content is written while `held` is open: two processes may add a key each.
    """
    keys = [
        {"key": str(entry.key), "namespaces": list(entry.namespaces), "until": entry.until, "revoked": entry.revoked}
        for entry in trust.keys
    ]
    value = {"format": FORMAT, "revocation_days": trust.revocation_days, "keys": keys}
    try:
        make_folder(os.path.dirname(trust.path))
        mode = os.stat(trust.path).st_mode & 0o044 if os.path.exists(trust.path) else 0
        write_file(trust.path, json.dumps(value, indent=1).encode() + b"\n", 0o600 | mode)
    except OSError as error:
        raise _unwritable(trust.path, str(error.strerror)) from error


def _unwritable(path: str, reason: str) -> TrustFileError:
    return TrustFileError(path, f"it cannot be written ({reason})", "Change it as its owner")
