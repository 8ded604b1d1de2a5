"""Whose signatures are accepted, for what, until when: the trust file, for everything that travels.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from opforge import formats, settings
from opforge import trust as owners
from opforge.cache.filesystem import lock
from opforge.cache.filesystem.files import read_file
from opforge.errors import SignatureError, TrustFileError
from opforge.machine_folder import can_write, make_folder, write_file
from opforge.remote.kind_table import FORMER, KINDS, scope_of

from . import policy_json, signing
from .policy_json import Field, Node

MAX_BYTES = 1 << 20
DATE = "%Y-%m-%d"
SCOPES = f"{', '.join(map(scope_of, KINDS))} with globs, such as op:*, 'op:my_*' or 'package:acme/*'"


class FormerScope(ValueError):
    """A scope is of a kind that is gone."""

    def __init__(self, text: str, instead: str) -> None:
        super().__init__(f"{ascii(text)[:100]} is a scope of an older opforge: write {instead}")
        self.instead = instead


def scope(text: str) -> str:
    """Returns a text that says what a key may sign. Raises ValueError for any other text."""
    kind, _, glob = text.partition(":")
    if kind in FORMER:
        raise FormerScope(text, FORMER[kind])
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
            "Get a public key from its holder, not from the remote, and run: opforge key trust NAME:KEY --for SCOPE"
            f" (it is written to {self.path})",
        )


def allowed(signers: Sequence[TrustedKey], name: str, what: str) -> list[TrustedKey]:
    """Returns those signers that may sign something of this name, which begins with its kind.

    Raises SignatureError if none may.
    """
    accepted = [trusted for trusted in signers if trusted.may_sign(name)]
    if accepted:
        return accepted
    scopes = "; ".join(f"{trusted.key.name} may sign {', '.join(trusted.scopes)}" for trusted in signers)
    raise SignatureError(what, f"no key that signed it may sign {name}: {scopes}", "See opforge key trust --for")


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
        raise TrustFileError(path, getattr(error, "strerror", None) or str(error), "Correct or remove it") from error
    real = os.path.dirname(os.path.realpath(path))
    if os.path.islink(path) and (problem := owners.folder_problem(real, trusted, for_file_inside=True)):
        raise TrustFileError(path, *problem)
    if status.st_uid not in trusted:
        raise TrustFileError(path, *owners.owner_problem("it", status.st_uid, trusted))
    if owners.others_bits(status):
        reason = f"it has mode {stat.S_IMODE(status.st_mode):o}, so others can change it"
        raise TrustFileError(path, reason, f"Run: chmod go-w {path}, as its owner")
    return path, data


@lru_cache(1)  # a fetch reads the file twice
def parse(path: str, data: bytes | None) -> Trust:
    """Returns what the bytes of a trust file say. Raises TrustFileError, which names the line."""
    if data is None:
        return Trust(path)
    try:
        fields = policy_json.fields_of(policy_json.read(data), "the trust file", FILE)
    except policy_json.LineError as error:
        raise TrustFileError(path, str(error), "Correct that line: nothing is fetched or installed before") from error
    return Trust(
        path,
        fields["keys"],
        fields["withdrawal_days"],
        fields["require_state"],
        fields["sigstore"],
    )


def _format(node: Node) -> int:
    if type(node.value) is not int or node.value != formats.TRUST:
        raise ValueError("of another opforge")
    return formats.TRUST


def _days(node: Node) -> float:
    days = policy_json.number(node)
    if not 0 < days < 36500:
        raise ValueError
    return days


def _keys(node: Node) -> tuple[TrustedKey, ...]:
    keys, lines = list[TrustedKey](), dict[bytes, int]()
    for item in policy_json.items(node):
        fields = policy_json.fields_of(item, "a key", KEY)
        key = TrustedKey(fields["key"], fields["for"], fields["until"], fields["revoked"])
        if key.key.data in lines:  # one of the two may be revoked
            raise item.error(f"the key {key.key.name} is in line {lines[key.key.data]} already")
        lines[key.key.data] = item.line
        keys.append(key)
    return tuple(keys)


def _public(node: Node) -> signing.Named:
    try:
        return signing.parse(policy_json.text(node), signing.PUBLIC_BYTES)
    except (TypeError, ValueError) as error:  # without the text, which may be a secret key
        raise node.error(f"'key' is not a public key: {str(error) or f'expected {signing.EXPECTED}'}") from None


def _texts(node: Node, name: str, parse: Callable[[str], str], expected: str) -> tuple[str, ...]:
    """Returns the texts in a list. Raises LineError, which names the item."""
    texts = list[str]()
    for number, item in enumerate(policy_json.items(node)):
        try:
            texts.append(parse(policy_json.text(item)))
        except (TypeError, ValueError) as error:
            wanted = error.instead if isinstance(error, FormerScope) else expected
            raise item.error(f"'{name}[{number}]' is {item.shown}: expected {wanted}") from error
    return tuple(texts)


def _scopes(node: Node) -> tuple[str, ...]:
    scopes = _texts(node, "for", scope, SCOPES)
    if not scopes:
        raise ValueError
    return scopes


def _workflows(node: Node) -> tuple[Workflow, ...]:
    rules = list[Workflow]()
    for item in policy_json.items(node):
        fields = policy_json.fields_of(item, "a rule of sigstore", WORKFLOW)
        rule = Workflow(fields.pop("for"), **fields)
        named = [bool(part) for part in (rule.repository, rule.workflow, rule.branch)]
        if any(named) != all(named) or not (any(named) or rule.files):
            raise item.error(
                "a rule of sigstore has 'repository', 'workflow' and 'branch', or 'files', or all of these"
            )
        rules.append(rule)
    return tuple(rules)


def _repository(node: Node) -> str:
    return _full(node, REPOSITORY)


def _plain(node: Node) -> str:
    return _full(node, PLAIN)


def _full(node: Node, form: str) -> str:
    text = policy_json.text(node)
    if text and not re.fullmatch(form, text):
        raise ValueError
    return text


def _digests(node: Node) -> tuple[str, ...]:
    return _texts(node, "files", _digest, "64 hex digits")


def _digest(text: str) -> str:
    if not re.fullmatch(DIGEST, text):
        raise ValueError
    return text


def _day(node: Node) -> str:
    return check_date(policy_json.text(node))


DAY = "a day such as 2027-06-30, or an empty text"
FILE: Mapping[str, Field] = {
    "format": Field(str(formats.TRUST), _format),
    "withdrawal_days": Field("a number of days, more than 0", _days, 0.0),
    "require_state": Field("true or false", policy_json.flag, False),
    "sigstore": Field("a list of rules", _workflows, ()),
    "keys": Field("a list of keys", _keys),
}
"""The fields of the trust file."""
KEY: Mapping[str, Field] = {
    "key": Field(signing.EXPECTED, _public),
    "for": Field(f"a list of {SCOPES}", _scopes),
    "until": Field(DAY, _day, ""),
    "revoked": Field(DAY, _day, ""),
}
"""The fields of a key in it."""
REPOSITORY = r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+"
PLAIN = r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*"
DIGEST = r"[0-9a-f]{64}"
WORKFLOW: Mapping[str, Field] = {
    "for": Field(f"a list of {SCOPES}", _scopes),
    "repository": Field("a repository such as org/name", _repository, ""),
    "workflow": Field("a path such as .github/workflows/build.yaml", _plain, ""),
    "branch": Field("a branch such as main", _plain, ""),
    "files": Field("a list of digests of variants", _digests, ()),
    "root": Field("a path of a file", policy_json.text, ""),
}
"""The fields of a rule of sigstore in it."""


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
    return TrustFileError(path, f"it cannot be written ({reason})", "Change it as its owner")
