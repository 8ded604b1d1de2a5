"""Chooses releases among those that remotes have: the newest that fits, and its variants for this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from opforge import settings
from opforge.errors import (
    KernelIncompatibleError,
    KernelInstallError,
    KernelNotFoundError,
    StoreBehindError,
    WithdrawnError,
)
from opforge.packages.choose import candidate, environment, order
from opforge.packages.choose.environment import Environment
from opforge.packages.form import version
from opforge.packages.form.version import Range, Version
from opforge.packages.installed.releases import SIGNED, UNSIGNED
from opforge.remote import remotes, statements
from opforge.remote.accepted import Accepted, Lists, required_root
from opforge.remote.remotes import Remote
from opforge.remote.signatures import trust
from opforge.remote.statements import Signed
from opforge.remote.stores import open_store
from opforge.remote.stores.protocol import ObjectStore

from . import fetched, index, release
from .index import Index
from .release import Release, Variant

if TYPE_CHECKING:
    from opforge.remote.tuf.client import Reader

MAX_TRIED = 50
"""How many releases are looked at for one whose variants fit, the newest first: 50,000 releases are not fetched."""


class Source(NamedTuple):
    """A remote with its open store."""

    remote: Remote
    store: ObjectStore
    lists: Lists
    """What the store's signers have withdrawn."""
    recent_lists: Lists
    """The same, as it was read within the last hour: for what a lock file vouches for."""
    tuf: Reader | None = None
    """What reads its indexes if this user trusts TUF root metadata of it."""

    def read_index(self, name: str) -> Index | None:
        """Returns the index of a name; None if there is none. Raises StoreError, SignatureError, KernelFormatError."""
        if self.tuf is None:
            return index.read(self.store, name)
        listing = self.tuf.listing(release.KIND, name)
        return None if listing is None else index.of_listing(listing, f"{self.store.url}: {name}")


class Verified(NamedTuple):
    """A release whose signature was verified."""

    release: Release
    signed: Signed
    signer: str
    """The name of the key; empty for an unsigned remote."""
    source: Source
    sequence: int
    """Of the index that named it."""
    withdrawn: str = ""
    """Why it is not chosen any more; empty if it may be."""
    index_kind: str = ""
    """Whether that index was SIGNED or UNSIGNED; empty if none was read."""

    @property
    def unsigned(self) -> list[tuple[str, str]]:
        """Returns what nobody has signed, each with the kind of message that says it."""
        what, where = f"{self.release.name} {self.release.version}", self.source.remote
        lines = [] if self.signer else [("warning", f"{what} is unsigned: {where} has the option unsigned=1")]
        if self.index_kind == UNSIGNED:
            text = f"the index of {self.release.name} is not signed: it may hide newer releases"
            lines.append(("note", f"{where}: {text} (see opforge tuf trust)"))
        return lines


def sources(urls: Sequence[str] = (), offline: bool = False) -> list[Source]:
    """Returns the remotes to ask: these, or those of OPFORGE_REMOTES.

    `offline`, or the setting, forbids the network: of the remotes only folders are asked.

    Raises SettingError, StoreError, TrustFileError: if what this user trusts cannot be read, none is asked.
    """
    trusted = trust.read()
    chosen = [remotes.parse(url, "--remote") for url in urls] or remotes.configured()
    is_offline = offline or settings.offline()
    return [_source(remote, open_store(remote.url, is_offline), trusted) for remote in chosen]


def _source(remote: Remote, store: ObjectStore, trusted: trust.Trust) -> Source:
    lists = [Lists(store, remote, trusted, is_fresh) for is_fresh in (True, False)]
    root = required_root(store, remote, trusted)
    if root is None:
        return Source(remote, store, lists[0], lists[1])
    from opforge.remote.tuf import client

    return Source(remote, store, lists[0], lists[1], client.reader(store, root))


def fetch_release(source: Source, listed: Index, number: Version) -> Verified:
    """Returns a release of an index after verifying its signature.

    Raises StoreError, SignatureError, also for one that its signer has withdrawn from use, ValueError.
    """
    entry = listed.releases[number]
    name = statements.name_of(entry.digest)
    where = f"{source.remote}/{name}"
    signed = fetched.signed(source.store, entry.digest, where)
    if signed is None:
        advice = "The remote is incomplete: report it to its owner"
        problem = f"{source.remote} names its release and has no {name}"
        raise KernelInstallError(f"{listed.name} {number}", problem, advice)
    accepted = accepted_signer(source.remote, source.lists, signed, listed.name, number, where)
    parsed = release.parse(signed.data, where, listed.name, number)
    kind = SIGNED if source.tuf else UNSIGNED
    return Verified(parsed, signed, accepted.key, source, listed.sequence, accepted.withdrawn, kind)


def accepted_signer(remote: Remote, lists: Lists, signed: Signed, name: str, number: Version, where: str) -> Accepted:
    """Returns the key that signed a release, may sign this name, and has not withdrawn it from use.

    The name of the key is empty for an unsigned remote. Raises SignatureError, StoreError.
    """
    if remote.is_unsigned:
        return Accepted("")
    signers = trust.read().signers(where, signed.data, signed.signatures)
    signers = trust.allowed(signers, f"{release.KIND}:{name}", where)
    withdrawn = release.PACKAGE.title(name, str(number))
    return lists.accepted(f"{name} {number}", withdrawn, signers, release.PACKAGE.needs_withdrawals)


class PassedOver(NamedTuple):
    """A remote, a release or a variant that is not used."""

    reason: str
    is_judged: bool = False
    """Whether a variant did not fit this machine; otherwise there was none to judge."""


class Choice(NamedTuple):
    """What a release installs."""

    verified: Verified
    variants: tuple[Variant, ...]


def choose(
    name: str,
    numbers: Range,
    among: Sequence[Source],
    here: Callable[[set[str]], Environment] = environment.here,
    all_platforms: bool = False,
    at_least: Mapping[str, int] | None = None,
) -> Choice:
    """Returns the newest release of a package that fits, and its best variant, or all of them.

    `at_least` are the sequences of indexes that are known: an older index is passed over. Raises KernelNotFoundError,
    KernelIncompatibleError, KernelInstallError, StoreError, SignatureError, KernelFormatError.
    """
    passed = list[PassedOver]()
    for choice in fitting(name, numbers, among, here, all_platforms, at_least):
        if isinstance(choice, Choice):
            return choice
        passed.append(choice)
    text = f"{name} {numbers}" if numbers.text else name
    rejected = [over.reason for over in passed if over.is_judged]
    if rejected:
        raise KernelIncompatibleError(text, rejected)
    if not among:
        raise KernelNotFoundError(text, ["no remote"], "Name one: --remote URL, or OPFORGE_REMOTES.")
    searched = [over.reason for over in passed]
    raise KernelNotFoundError(text, searched, "Check the name and the version, or name another remote.")


def fitting(
    name: str,
    numbers: Range,
    among: Sequence[Source],
    here: Callable[[set[str]], Environment],
    all_platforms: bool,
    at_least: Mapping[str, int] | None,
) -> Iterator[Choice | PassedOver]:
    """Yields the releases of a package that fit, the newest first, and between them what is not used."""
    for verified in releases(name, numbers, among, at_least):
        if isinstance(verified, PassedOver):
            yield verified
            continue
        chosen, problems = variants_for(verified.release.variants, here, all_platforms)
        if chosen:
            yield Choice(verified, chosen)
        for problem in problems:
            yield PassedOver(f"{name} {verified.release.version}, {problem}", is_judged=True)


def releases(
    name: str,
    numbers: Range,
    among: Sequence[Source],
    at_least: Mapping[str, int] | None,
) -> Iterator[Verified | PassedOver]:
    """Yields the releases of a package in a range, the newest first; the first remote that has the name is asked alone.

    A second remote must not be able to offer a newer release of a name that is the first one's. One that is behind what
    was seen of it is passed over: then the next decides. What is not used is yielded too. Raises StoreBehindError if no
    remote is current, and what `fetch_release` raises.
    """
    behind = list[StoreBehindError]()
    for source in among:
        is_decided = False
        try:
            listed = source.read_index(name)
            if listed is None:
                yield PassedOver(f"{source.remote}: it has no package {name}")
                continue
            refuse_older(listed, source, (at_least or {}).get(name, 0))
            for verified in _of_index(source, listed, numbers):
                is_decided = is_decided or isinstance(verified, Verified)
                yield verified
            return
        except StoreBehindError as error:
            if is_decided:
                raise
            behind.append(error)
            yield PassedOver(f"{source.remote}: it is passed over: {error.reason}")
    if behind and len(behind) == len(among):
        raise behind[0]


def _of_index(source: Source, listed: Index, numbers: Range) -> Iterator[Verified | PassedOver]:
    """Yields the releases of an index in a range that may be chosen, the newest first.

    An exact version may be, also if it was withdrawn from being chosen: who names it gets it, with a warning.
    """
    tried = 0
    for number in listed.within(numbers):
        try:
            verified = fetch_release(source, listed, number)
        except WithdrawnError as error:
            if _is_exact(numbers):
                raise
            yield PassedOver(f"{source.remote}: {listed.name} {number} is not used: {error.reason}")
            continue
        if verified.withdrawn and not _is_exact(numbers):
            yield PassedOver(f"{source.remote}: {listed.name} {number} was withdrawn: {verified.withdrawn}")
            continue
        yield verified
        tried += 1
        if tried == MAX_TRIED:
            text = f"of {listed.name} {numbers} the {MAX_TRIED} newest releases were looked at"
            yield PassedOver(f"{source.remote}: {text}: name an older version, if one may fit")
            return
    if not tried:
        newest = [str(number) for number in sorted(listed.releases, reverse=True)[:5]]
        sought = f"release in {numbers}" if numbers.text else "release that may be chosen"
        text = f"{listed.name} has no {sought}; its newest are: {', '.join(newest) or 'none'}"
        yield PassedOver(f"{source.remote}: {text}")


def variants_for(
    parts: Sequence[Variant], here: Callable[[set[str]], Environment], all_platforms: bool
) -> tuple[tuple[Variant, ...], list[str]]:
    """Returns the variants to install: the best for each device, or all; if none fits, why not, a line for each."""
    if all_platforms:
        return tuple(parts), []
    candidates = [part.candidate for part in parts]
    environment = here(candidate.asked_for(candidates))
    chosen = order.best(candidates, environment)
    if chosen:
        return tuple(part for part in parts if part.candidate in chosen), []
    return (), [f"{choice.candidate.label}: {choice.problem}" for choice in order.decide(candidates, environment)]


def for_this_machine(choice: Choice) -> Choice:
    """Returns a choice with the variants for this machine alone. Raises KernelIncompatibleError if there is none."""
    release = choice.verified.release
    chosen, problems = variants_for(release.variants, environment.here, all_platforms=False)
    if not chosen:
        raise KernelIncompatibleError(f"{release.name} {release.version}", problems)
    return choice._replace(variants=chosen)


def refuse_older(listed: Index, source: Source, known_sequence: int) -> None:
    """Raises StoreBehindError for an index that is older than the one that the lock file was made with."""
    if listed.sequence < known_sequence:
        problem = f"its index is of state {listed.sequence}, older than the lock's {known_sequence}"
        advice = "Somebody holds back what is newer, or the remote was restored from a backup: ask its owner"
        raise StoreBehindError(f"{listed.name} of {source.remote}", problem, advice)


def _is_exact(numbers: Range) -> bool:
    return any(low == high and not excluded for low, high, excluded in numbers.bounds)


def parse_requirement(text: str) -> tuple[str, Range]:
    """Returns the name and the range of `org/name`, `org/name@2.3` or `org/name>=2,<3`. Raises KernelFormatError."""
    from opforge.packages.form import names

    end = next((at for at, char in enumerate(text) if char in "@<>=! "), len(text))
    rest = text[end:].removeprefix("@").strip()
    name = names.check(text[:end], "the kernel")
    return name, version.parse_range(rest if text[end:].strip() else None, f"the version of {name}")
