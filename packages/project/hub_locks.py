"""Reads both lock formats of the hub: which kernels, which commits, and the hashes of the older one."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.schema import Fields, FormatError
from opforge.errors import KernelFormatError
from opforge.packages.form import version
from opforge.packages.form.version import Range

EXPECTED = "a kernels.lock of the hub"
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
KERNELS = schema.items({}, most=10_000)
HASH = re.compile(r"sha256-[0-9a-f]{64}|sha256-[A-Za-z0-9+/]{43}=")


class HubLocked(NamedTuple):
    """A kernel in a lock file of the hub."""

    repository: str
    """As the hub writes it, which allows capital letters."""
    commit: str
    numbers: Range = version.ANY
    revision: str = ""
    hashes: dict[str, str] = {}
    """By label; of the older format alone."""


def parse(data: bytes, where: str) -> list[HubLocked]:
    """Returns the kernels of a lock file, in its order. Raises KernelFormatError."""
    try:
        value = schema.parse(data, KERNELS)
    except FormatError as error:
        raise KernelFormatError(where, str(error), EXPECTED) from error
    kernels = [_new(part, where) if isinstance(part, dict) and "lock" in part else _old(part, where) for part in value]
    # Two versions of a repository are two kernels: one that needs the older one is locked with it.
    stated = [(kernel.repository.lower(), kernel.numbers, kernel.revision) for kernel in kernels]
    if twice := next((part for part in stated if stated.count(part) > 1), None):
        raise KernelFormatError(where, f"{' '.join(filter(None, map(str, twice)))} is in it twice", EXPECTED)
    return kernels


def _old(value: Any, where: str) -> HubLocked:
    fields = Fields(value, where, EXPECTED)
    hashes = {}
    for label, part in fields.table("variants").items():
        variant = Fields(part, f"{where}: {label}", EXPECTED)
        if variant.text("hash_type", "git_lfs_concat") != "git_lfs_concat" or not HASH.fullmatch(variant.text("hash")):
            kind, text = variant.text("hash_type", "git_lfs_concat"), variant.text("hash")
            problem = f"'hash_type' is {ascii(kind)[:40]} and 'hash' {ascii(text)[:80]}"
            raise variant.error(f"{problem}, and not git_lfs_concat and sha256- with 64 hex digits")
        hashes[str(label)] = variant.text("hash")
    return HubLocked(_repository(fields, "repo_id"), _commit(fields, "sha"), hashes=hashes)


def _new(value: Any, where: str) -> HubLocked:
    fields = Fields(value, where, EXPECTED)
    fields.only(("dependency", "lock"))
    dependency = Fields(fields.table("dependency"), f"{where}: dependency", EXPECTED)
    dependency.only(("repo-id", "version", "revision"))
    lock = Fields(fields.table("lock"), f"{where}: lock", EXPECTED)
    lock.only(("commit", "hash"))
    if ("version" in dependency.values) == ("revision" in dependency.values):
        raise dependency.error("it has not exactly one of 'version' and 'revision'")
    numbers = version.parse_range(dependency.values.get("version"), dependency.where)
    if "hash" in lock.values and not HASH.fullmatch(lock.text("hash")):
        raise lock.error(f"'hash' is {ascii(lock.text('hash'))[:80]}, and not sha256- with 64 hex digits")
    revision = dependency.text("revision", "")
    return HubLocked(_repository(dependency, "repo-id"), _commit(lock, "commit"), numbers, revision)


def _repository(fields: Fields, name: str) -> str:
    text = fields.text(name)
    if not REPOSITORY.fullmatch(text) or ".." in text:
        raise fields.error(f"{name!r} is {ascii(text)[:100]}: expected a repository such as acme/relu")
    return text


def _commit(fields: Fields, name: str) -> str:
    text = fields.text(name)
    if not COMMIT.fullmatch(text):
        raise fields.error(f"{name!r} is {ascii(text)[:100]}, and not 40 or 64 hex digits")
    return text
