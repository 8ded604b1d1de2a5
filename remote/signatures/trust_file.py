"""The trust file: whose signatures are accepted, for which names, until which day, for every kind of artifact.

A statement is judged by it, and by the lists of withdrawals, in `remote/accepted_statements.py`.

    {"format": 1, "withdrawal_days": 30, "keys": [
      {"key": "ci:BASE64", "for": ["op:*", "package:acme/*"], "until": "2027-06-30", "revoked": ""}]}

`sigstore` has the workflows whose signatures of the hub's packages count: see packages/project/hub_signatures.py.

Who can change this file decides what is loaded into the process. So its owner, its mode and every folder above it are
checked as those of a layer are. A field that is not known, or has another type, is an error: passed over, it would be a
limit that does not hold.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.filesystem import lock
from opforge.cache.schema import FLAG, SHA256, TEXT, FormatError, items, number, record, text, version
from opforge.errors import SignatureError, TrustFileError
from opforge.foundation import file_owners as owners
from opforge.foundation import formats, settings
from opforge.foundation.files import can_write, make_folder, read_file, write_file
from opforge.remote.kind_table import FORMER_NAMED, KINDS, scope_of

from . import signing

MAX_BYTES = 1 << 20
DATE = "%Y-%m-%d"
PLAIN = r"([A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*)?"
SCOPES = f"{', '.join(map(scope_of, KINDS))} with globs, such as op:*, 'op:my_*' or 'package:acme/*'; {FORMER_NAMED}"


CHANGED = "Somebody has changed it in the remote, or the key's holder has another key of that name: ask the holder"
"""Advice about a signature by the name of a trusted key that is not that key's."""


def scope(text: str) -> str:
    """Returns a text that says what a key may sign. Raises ValueError for any other text."""
    kind, _, glob = text.partition(":")
    if kind not in KINDS or not re.fullmatch(KINDS[kind].globs, glob):
        raise ValueError(f"{ascii(text)[:100]} is not a scope: expected {SCOPES}")
    return text


class TrustedKey(NamedTuple):
    """A public key, and what it may sign."""

    key: signing.Named
    scopes: tuple[str, ...]
    """Globs over names, each with its kind, such as op:NAME or package:ORG/NAME: see SCOPES."""
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
        """Returns whether it may sign something of this name, which begins with its kind: op:relu, package:a/relu."""
        return any(_matches(name, glob) for glob in self.scopes)


def _matches(name: str, glob: str) -> bool:
    """Returns whether a glob holds a name. A glob's part before the slash is for the organization alone."""
    kind, _, rest = name.partition(":")
    of_kind, _, pattern = glob.partition(":")
    parts, patterns = rest.split("/"), pattern.split("/")
    return kind == of_kind and len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


class Workflow(NamedTuple):
    """A workflow of a repository whose signatures of the hub's packages count, and files that need none."""

    scopes: tuple[str, ...]
    repository: str = ""
    """Such as huggingface/kernels-community; empty if files alone are accepted."""
    workflow: str = ""
    """Its path in the repository."""
    branch: str = ""
    files: tuple[str, ...] = ()
    """Digests of variants that are accepted as they are."""
    root: str = ""
    """A file with the keys of an instance of sigstore; empty for those of the public one."""

    def __str__(self) -> str:
        """Returns the workflow with its repository and branch."""
        return f"{self.repository}/{self.workflow}@{self.branch}"


class Trust(NamedTuple):
    """The content of the trust file."""

    path: str
    keys: tuple[TrustedKey, ...] = ()
    withdrawal_days: float = 0.0
    """How old a list of a key may be; 0 for any age."""
    requires_state: bool = False
    """Whether nothing is accepted where what was seen of its signer cannot be kept."""
    workflows: tuple[Workflow, ...] = ()

    def workflows_of(self, name: str) -> list[Workflow]:
        """Returns the rules for a package of the hub by its name, which begins with its kind: package:org/name."""
        return [rule for rule in self.workflows if any(_matches(name, glob) for glob in rule.scopes)]

    def signers(
        self, what: str, data: bytes, signatures: Sequence[signing.Named], now: float = 0.0
    ) -> list[TrustedKey]:
        """Returns the trusted keys by which the bytes are signed now.

        Nothing of the bytes is parsed. `what` names them in messages. Raises SignatureError if there is no such key,
        with the reason for each signature.
        """
        accepted, reasons, is_other = list[TrustedKey](), list[str](), False
        for signature in signatures:
            keys = [trusted for trusted in self.keys if trusted.key.name == signature.name]
            if not keys:
                reasons.append(f"the key {signature.name} is not in the trust file")
            for trusted in keys:
                problem = trusted.problem(now or time.time())
                if not problem and not signing.is_signed(data, signature, trusted.key):
                    problem, is_other = f"the signature by {signature.name} is not of these bytes", True
                if problem:
                    reasons.append(problem)
                else:
                    accepted.append(trusted)
        if accepted:
            return accepted
        reason = "; ".join(dict.fromkeys(reasons)) or "it has no signature"
        hint = (
            "Get a public key from its holder, not from the remote, and run: opforge key trust NAME:KEY --for SCOPE"
            f" (it is written to {self.path})"
        )
        raise SignatureError(what, reason, CHANGED if is_other else hint)


def allowed(signers: Sequence[TrustedKey], name: str, what: str) -> list[TrustedKey]:
    """Returns the signers that may sign an artifact of this name, which begins with its kind.

    Raises SignatureError if none may.
    """
    if accepted := [trusted for trusted in signers if trusted.may_sign(name)]:
        return accepted
    scopes = "; ".join(f"{trusted.key.name} may sign {', '.join(trusted.scopes)}" for trusted in signers)
    raise SignatureError(
        what, f"no key that signed it may sign {name}: {scopes}", f"If it may: {_command(signers, name)}"
    )


def _command(signers: Sequence[TrustedKey], name: str) -> str:
    """Returns the command by which the first of these keys may sign an artifact of this name too."""
    entry = next(iter(signers))
    options = [f"--for {owners.quoted(scope)}" for scope in (*entry.scopes, name)]
    return " ".join(
        ["opforge key trust", str(entry.key), *options, *([f"--until {entry.until}"] if entry.until else [])]
    )


def verify(what: str, data: bytes, signatures: Sequence[signing.Named], name: str, trust: Trust) -> TrustedKey:
    """Returns a trusted key that signed these bytes and may sign something of this name, which begins with its kind.

    Raises SignatureError.
    """
    return allowed(trust.signers(what, data, signatures), name, what)[0]


def read() -> Trust:
    """Returns the content of the trust file; without a file no key is trusted. Raises TrustFileError."""
    return parse(*content())


def content() -> tuple[str, bytes | None]:
    """Returns the path of the trust file, and its bytes: None if there is none.

    Raises TrustFileError if it cannot be read, or others could have changed it.
    """
    path = settings.trust_file()
    trusted = owners.trusted_ids(settings.trusted_owners())
    problem = owners.folder_problem(os.path.dirname(path), trusted, for_file_inside=True)
    if problem:
        raise TrustFileError(path, *problem)
    try:
        status = os.stat(path)
        data = read_file(path, MAX_BYTES)
    except FileNotFoundError:
        return path, None
    except (OSError, ValueError) as error:
        is_closed = isinstance(error, PermissionError)
        hint = (
            f"Its owner runs: chmod a+r {owners.quoted(path)}, and a+x for its folder"
            if is_closed
            else "Correct or remove it"
        )
        raise TrustFileError(path, getattr(error, "strerror", None) or str(error), hint) from error
    real = os.path.dirname(os.path.realpath(path))
    if os.path.islink(path) and (problem := owners.folder_problem(real, trusted, for_file_inside=True)):
        raise TrustFileError(path, *problem)
    if status.st_uid not in trusted:
        raise TrustFileError(path, *owners.owner_problem("it", status.st_uid, trusted))
    if owners.others_bits(status, path):
        reason = f"it has mode {stat.S_IMODE(status.st_mode):o}, so others can change it"
        raise TrustFileError(path, reason, f"Run: chmod go-w {owners.quoted(path)}, as its owner")
    return path, data


@lru_cache(1)  # a fetch reads the file twice
def parse(path: str, data: bytes | None) -> Trust:
    """Returns the content of a trust file's bytes. Raises TrustFileError, which names the line."""
    if data is None:
        return Trust(path)
    try:
        with schema.lines_named(data):
            value = schema.parse(data, FILE, MAX_BYTES)
            days, requires_state = value.get("withdrawal_days", 0.0), value.get("require_state", False)
            return Trust(path, _keys(data, value["keys"]), days, requires_state, _workflows(value.get("sigstore", ())))
    except FormatError as error:
        raise TrustFileError(path, str(error), "Correct that line: nothing is fetched or installed before") from error


def _keys(data: bytes, values: Sequence[Mapping[str, Any]]) -> tuple[TrustedKey, ...]:
    keys, places = list[TrustedKey](), dict[bytes, str]()
    for at, value in enumerate(values):
        place = f"keys[{at}]"
        try:
            public = signing.parse(value["key"], signing.PUBLIC_BYTES)
        except ValueError as error:  # without the text, which may be a secret key
            raise FormatError(f"'{place}.key' is not a public key: {error}", f"{place}.key") from None
        days = [_day(value.get(field, ""), f"{place}.{field}") for field in ("until", "revoked")]
        if public.data in places:  # one of the two may be revoked
            line = schema.lines_of(data.decode())[places[public.data]]
            raise FormatError(f"the key {public.name} is in line {line} already", place)
        places[public.data] = place
        keys.append(TrustedKey(public, _scopes(value["for"], f"{place}.for"), *days))
    return tuple(keys)


def _scopes(texts: Sequence[str], place: str) -> tuple[str, ...]:
    for at, glob in enumerate(texts):
        try:
            scope(glob)
        except ValueError as error:
            problem = f"'{place}[{at}]' is {ascii(glob)[:100]}: expected {SCOPES}"
            raise FormatError(problem, f"{place}[{at}]") from error
    return tuple(texts)


def _day(text: str, place: str) -> str:
    try:
        return check_date(text)
    except ValueError as error:
        raise FormatError(f"{place!r} is {ascii(text)[:40]} ({error}): expected {DAY_EXPECTED}", place) from error


def _workflows(values: Sequence[Mapping[str, Any]]) -> tuple[Workflow, ...]:
    for at, value in enumerate(values):
        named = [bool(value.get(field)) for field in ("repository", "workflow", "branch")]
        if any(named) != all(named) or not (any(named) or value.get("files")):
            problem = "a rule of sigstore has 'repository', 'workflow' and 'branch', or 'files', or all of these"
            raise FormatError(problem, f"sigstore[{at}]")
    return tuple(
        Workflow(
            _scopes(value["for"], f"sigstore[{at}].for"),
            value.get("repository", ""),
            value.get("workflow", ""),
            value.get("branch", ""),
            tuple(value.get("files", ())),
            value.get("root", ""),
        )
        for at, value in enumerate(values)
    )


DAY_EXPECTED = "a day such as 2027-06-30, or an empty text"
DAY = text(r"(\d{4}-\d\d-\d\d)?", DAY_EXPECTED)
WORKFLOW_FIELDS: Mapping[str, schema.Schema] = {
    "repository": text(r"([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)?", "a repository such as org/name"),
    "workflow": text(PLAIN, "a path such as .github/workflows/build.yaml"),
    "branch": text(PLAIN, "a branch such as main"),
    "files": items(SHA256),
    "root": TEXT,
}
"""The fields of a rule of sigstore that may be missing."""
FILE = record(
    {
        "format": version(formats.TRUST),
        "keys": items(record({"key": TEXT, "for": items(TEXT, least=1)}, optional={"until": DAY, "revoked": DAY})),
    },
    optional={
        "withdrawal_days": number(0, 36500, "a number of days, more than 0"),
        "require_state": FLAG,
        "sigstore": items(record({"for": items(TEXT, least=1)}, optional=WORKFLOW_FIELDS)),
    },
)
"""The fields of the trust file. What is in `for` is checked by `scope`."""


def check_date(text: str) -> str:
    """Returns the text, if it is empty or a day such as 2027-06-30. Raises ValueError.

    Each number has all its digits, as days are compared as texts: strftime writes the year 27 without zeros.
    """
    return datetime.strptime(text, DATE).date().isoformat() if text else ""


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
    with lock.acquire(f"{path}.lock", f"the trust file {path}", settings.lock_timeout()):
        yield read()


def write(trust: Trust) -> None:
    """Writes the trust file. One that others may read, such as a site's, stays readable. Raises TrustFileError.

    What depends on the file's content is written while `held` is open: two processes may add a key each.
    """
    keys = [
        {"key": str(entry.key), "for": list(entry.scopes), "until": entry.until, "revoked": entry.revoked}
        for entry in trust.keys
    ]
    value: dict[str, object] = {"format": formats.TRUST}
    value |= {"withdrawal_days": trust.withdrawal_days} if trust.withdrawal_days else {}
    value |= {"require_state": True} if trust.requires_state else {}
    if trust.workflows:
        rules = (
            {"for": rule.scopes, **{name: part for name, part in rule._asdict().items() if part}}
            for rule in trust.workflows
        )
        value["sigstore"] = [{name: part for name, part in rule.items() if name != "scopes"} for rule in rules]
    value["keys"] = keys
    data = json.dumps(value, indent=1).encode() + b"\n"
    if len(data) > MAX_BYTES:
        raise TrustFileError(trust.path, f"it would have {len(data)} bytes, more than {MAX_BYTES}", "Remove old keys")
    parse(trust.path, data)  # what nobody could read would stop all fetching
    try:
        make_folder(os.path.dirname(trust.path))
        mode = os.stat(trust.path).st_mode & 0o044 if os.path.exists(trust.path) else 0
        write_file(trust.path, data, 0o600 | mode)
    except OSError as error:
        raise _unwritable(trust.path, str(error.strerror)) from error


def _unwritable(path: str, reason: str) -> TrustFileError:
    advice = "Change it as its owner, or name a file that you can write with OPFORGE_TRUST_FILE"
    return TrustFileError(path, f"it cannot be written ({reason})", advice)
