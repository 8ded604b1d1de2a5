"""Chooses a release from remotes: the newest that fits, and its variants for this machine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from opforge.errors import (
    KernelFormatError,
    KernelIncompatibleError,
    KernelInstallError,
    KernelNotFoundError,
    SignatureError,
    StoreBehindError,
    StoreError,
    WithdrawnError,
)
from opforge.foundation import settings
from opforge.packages.choose import candidate, environment, order
from opforge.packages.choose.environment import Environment
from opforge.packages.form import names, version
from opforge.packages.form.version import Range, Version
from opforge.remote import remotes, statements
from opforge.remote.accepted_statements import Lists, judge
from opforge.remote.remotes import Remote
from opforge.remote.signatures import trust_file
from opforge.remote.statements import Signed
from opforge.remote.stores import open_store
from opforge.remote.stores.protocol import ObjectStore
from opforge.remote.withdrawal_lists import NOTHING

from . import index, kept_releases, release
from .release import Release, Variant

MAX_TRIED = 50
"""How many releases are looked at for one whose variants fit, the newest first: 50,000 releases are not fetched."""
MAX_ASKED = 1000
"""How many releases are asked for that a signer's list names and the index of the remote does not: then it ends with an
error, since to pass over the others would let the index hide them."""


class Source(NamedTuple):
    """A remote with its open store."""

    remote: Remote
    store: ObjectStore
    lists: Lists
    """The lists of the store's signers."""
    recent_lists: Lists
    """The same, as they were read within the last hour: for what a lock file vouches for."""

    def offered(self, name: str) -> Offered:
        """Returns the releases of a name. Raises StoreError, StoreBehindError, KernelInstallError, ValueError.

        A signer's list says which there are, and the index which of these the remote has: that is unsigned, and may be
        old, damaged or gone. With unsigned=1 the index says both.
        """
        if self.remote.is_unsigned:
            there, is_known, _none = self._index(name)
            return Offered(name, there, {number: [digest] for number, digest in there.items()}, is_known)
        named, problems = self.lists.released(f"{release.KIND}:{name}")
        where = f"{self.remote}: the list of {name}"
        digests = {version.parse(label, where): digests for label, digests in named.items()}
        there, is_known, problem = self._index(name, is_named=bool(named))
        is_known = is_known or self._has_any(name, digests)
        return Offered(name, there, digests, is_known, tuple(filter(None, [*problems, problem])))

    def _index(self, name: str, is_named: bool = False) -> tuple[dict[Version, str], bool, str]:
        """Returns the digests in an index, whether there is one, and why it cannot be read.

        Raises StoreError, KernelFormatError, which stop a package that no list names.
        """
        try:
            listed = index.read(self.store, name)
        except (StoreError, KernelFormatError) as error:
            if not is_named:
                raise
            return {}, True, f"its index of {name} is not used: {error}"
        entries = listed.releases if listed else {}
        return {number: entry.digest for number, entry in entries.items()}, listed is not None, ""

    def _has_any(self, name: str, named: Mapping[Version, Sequence[str]]) -> bool:
        """Returns whether a store without an index has one of the releases that lists name: a mirror may have none."""
        digests = [digest for number in sorted(named, reverse=True) for digest in named[number]]
        is_there = any(self.store.exists(statements.name_of(digest)) for digest in digests[:MAX_ASKED])
        if not is_there and len(digests) > MAX_ASKED:
            raise _too_many(self, name)
        return is_there

    def withdrawn(self, name: str, number: Version) -> bool:
        """Returns whether a list that was read takes a release back."""
        title = f"{release.KIND}:{name}@{number.canonical}"
        return any(listed.of(title).stops != NOTHING for listed in self.lists.read)


class Offered(NamedTuple):
    """The releases of a name in a remote."""

    name: str
    there: Mapping[Version, str]
    """The digests in the index."""
    named: Mapping[Version, Sequence[str]]
    """The digests in the lists of the keys that may sign the name."""
    is_known: bool
    """Whether the remote has an index of the name, or one of these releases."""
    problems: tuple[str, ...] = ()
    """Why the lists of other keys, or the index, are not used."""

    def within(self, numbers: Range) -> list[Version]:
        """Returns the versions in a range, the newest first."""
        # First those of the index: it has them as their packages write them.
        return sorted((number for number in {**self.there, **self.named} if number in numbers), reverse=True)

    def digests(self, number: Version) -> tuple[Sequence[str], bool]:
        """Returns the digests of a version, of which the first that is there counts, and whether the index has it.

        None if no list names it. Two lists may name two releases: then the index says which is meant.
        """
        digests, there = self.named.get(number, ()), self.there.get(number, "")
        return ([there], True) if there in digests else (digests, False)


class Verified(NamedTuple):
    """A release whose signature was verified."""

    release: Release
    signed: Signed
    signer: str
    """The name of the key; empty for an unsigned remote."""
    source: Source
    withdrawn: str = ""
    """Why it is not chosen any more; empty if it may be."""
    missing: tuple[Version, ...] = ()
    """Newer releases that its signers' lists name, and the remote has not."""

    @property
    def notes(self) -> list[tuple[str, str]]:
        """Returns warnings about unsigned and missing parts, each with its kind of message."""
        name, where = self.release.name, self.source.remote
        what = f"{name} {self.release.version}"
        lines = [] if self.signer else [("warning", f"{what} is unsigned: {where} has the option unsigned=1")]
        if self.missing:
            newer = ", ".join(map(str, self.missing))
            lines.append(("note", f"{where} lacks {name} {newer}, newer than {what}: it holds a part, or is behind"))
        return lines


def sources(urls: Sequence[str] = (), offline: bool = False) -> list[Source]:
    """Returns the remotes to ask: these, or those of OPFORGE_REMOTES.

    `offline`, or the setting, forbids the network: of the remotes only folders are asked.

    Raises SettingError, StoreError, TrustFileError: if what this user trusts cannot be read, none is asked.
    """
    trusted = trust_file.read()
    chosen = [remotes.parse(url, "--remote") for url in urls] or remotes.configured()
    is_offline = offline or settings.offline()
    return [_source(remote, open_store(remote.url, is_offline), trusted) for remote in chosen]


def _source(remote: Remote, store: ObjectStore, trusted: trust_file.Trust) -> Source:
    fresh, recent = (Lists(store, remote, trusted, is_fresh) for is_fresh in (True, False))
    return Source(remote, store, fresh, recent)


def fetch_release(source: Source, name: str, number: Version, digest: str, is_there: bool = True) -> Verified | None:
    """Returns a release by its digest after verifying its signature; None if the remote has none.

    Raises KernelInstallError if it lacks one that `is_there`, by its own index; StoreError, SignatureError, also for
    one that its signer has withdrawn from use, ValueError.
    """
    file = statements.name_of(digest)
    where = f"{source.remote}/{file}"
    signed = kept_releases.signed(source.store, digest, where, from_kept=is_there)
    if signed is None:
        if not is_there:
            return None
        advice = "The remote is incomplete: report it to its owner"
        raise KernelInstallError(f"{name} {number}", f"{source.remote} names its release and has no {file}", advice)
    try:
        return accepted_release(source, source.lists, signed, name, number)
    except SignatureError:
        # One that was kept lacks the signatures that were added since, as those of a key that replaces another one.
        newer = kept_releases.signed(source.store, digest, where, from_kept=False) if is_there else None
        if newer is None or newer == signed:
            raise
        return accepted_release(source, source.lists, newer, name, number)


def accepted_release(source: Source, lists: Lists, signed: Signed, name: str, number: Version) -> Verified:
    """Returns a fetched release, which must be of this name and version, after verifying its signature.

    Raises SignatureError, also for one that its signer has withdrawn from use, StoreError, KernelFormatError.
    """
    where = f"{source.remote}/{statements.name_of(signed.digest)}"
    trusted = None if source.remote.is_unsigned else trust_file.read()
    parse = functools.partial(release.parse, where=where, name=name, number=number)
    parsed, accepted = judge(signed, f"{name} {number}", release.PACKAGE, trusted, lists, parse)
    return Verified(parsed, signed, accepted.key, source, accepted.withdrawn)


class PassedOver(NamedTuple):
    """A remote, a release or a variant that is not used."""

    reason: str
    is_judged: bool = False
    """Whether a variant did not fit this machine; otherwise there was none to judge."""


class Choice(NamedTuple):
    """A verified release, and its variants to install."""

    verified: Verified
    variants: tuple[Variant, ...]


def choose(
    name: str,
    numbers: Range,
    among: Sequence[Source],
    here: Callable[[set[str]], Environment] = environment.here,
    all_platforms: bool = False,
) -> Choice:
    """Returns the newest release of a package that fits, and its best variant, or all of them.

    Raises KernelNotFoundError, KernelIncompatibleError, KernelInstallError, StoreError, SignatureError,
    KernelFormatError.
    """
    passed = list[PassedOver]()
    for choice in fitting(name, numbers, among, here, all_platforms):
        if isinstance(choice, Choice):
            return choice
        passed.append(choice)
    text = f"{name} {numbers}" if numbers.text else name
    if rejected := [over.reason for over in passed if over.is_judged]:
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
) -> Iterator[Choice | PassedOver]:
    """Yields the releases of a package that fit, the newest first, and between them what is not used."""
    for verified in releases(name, numbers, among):
        if isinstance(verified, PassedOver):
            yield verified
            continue
        chosen, problems = variants_for(verified.release.variants, here, all_platforms)
        if chosen:
            yield Choice(verified, chosen)
        for problem in problems:
            yield PassedOver(f"{name} {verified.release.version}, {problem}", is_judged=True)


def releases(name: str, numbers: Range, among: Sequence[Source]) -> Iterator[Verified | PassedOver]:
    """Yields the releases of a package in a range, the newest first; the first remote that has the name is asked alone.

    A second remote must not be able to offer a newer release of a name that is the first one's. One that is behind what
    was seen of it is passed over: then the next decides. What is not used is yielded too. Raises StoreBehindError if no
    remote is current, and what `fetch_release` raises.
    """
    behind = list[StoreBehindError]()
    for source in among:
        is_decided = False
        try:
            there = source.offered(name)
            for problem in there.problems:
                yield PassedOver(f"{source.remote}: {problem}")
            if not there.is_known:
                yield PassedOver(f"{source.remote}: it has no package {name}")
                continue
            for verified in _of_remote(source, there, numbers):
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


def _of_remote(source: Source, there: Offered, numbers: Range) -> Iterator[Verified | PassedOver]:
    """Yields the releases in a range that may be chosen, the newest first, and what is not used.

    An exact version may be, also if it was withdrawn from being chosen: who names it gets it, with a warning. What a
    list names and the remote lacks is no error: it may be a mirror of a part.
    """
    tried, asked, missing, unnamed = 0, 0, list[Version](), list[Version]()
    for number in there.within(numbers):
        digests, is_there = there.digests(number)
        if not digests:
            unnamed.append(number)
            continue
        asked += 0 if is_there else len(digests)
        if asked > MAX_ASKED:
            error = _too_many(source, there.name)
            if not tried:
                raise error
            yield PassedOver(f"{source.remote}: older releases are not looked for: {error.problem}")
            return
        fetches = (fetch_release(source, there.name, number, digest, is_there) for digest in digests)
        try:
            verified = next(filter(None, fetches), None)
        except WithdrawnError as error:
            if _is_exact(numbers):
                raise
            yield PassedOver(f"{source.remote}: {there.name} {number} is not used: {error.reason}")
            continue
        if verified is None:
            missing += [] if source.withdrawn(there.name, number) else [number]
            yield PassedOver(f"{source.remote}: its index lacks {there.name} {number}, which a signer's list names")
            continue
        if verified.withdrawn and not _is_exact(numbers):
            exact = f"{there.name}@{number.interface}.{number.rebuild}"
            text = f"{there.name} {number} was withdrawn: {verified.withdrawn} ({exact} requests it nevertheless)"
            yield PassedOver(f"{source.remote}: {text}")
            continue
        yield verified._replace(missing=tuple(missing))
        tried += 1
        if tried == MAX_TRIED:
            text = f"of {there.name} {numbers} the {MAX_TRIED} newest releases were looked at"
            yield PassedOver(f"{source.remote}: {text}: name an older version, if one may fit")
            return
    if tried:
        return
    if unnamed:  # its signature says why: by a key that is not trusted, or of one that has not listed it
        fetch_release(source, there.name, unnamed[0], there.there[unnamed[0]])
    newest = [str(number) for number in there.within(version.ANY)[:5]]
    sought = f"release in {numbers}" if numbers.text else "release"
    sought += " that may be chosen" if there.within(numbers) else ""
    text = f"{there.name} has no {sought}; its newest are: {', '.join(newest) or 'none'}"
    yield PassedOver(f"{source.remote}: {text}")


def _too_many(source: Source, name: str) -> KernelInstallError:
    reason = f"signers' lists name more than {MAX_ASKED} releases of it that the index of {source.remote} lacks"
    advice = "Publish one of them again, which adds it to the index, or name one version"
    return KernelInstallError(name, reason, advice)


def variants_for(
    parts: Sequence[Variant], here: Callable[[set[str]], Environment], all_platforms: bool
) -> tuple[tuple[Variant, ...], list[str]]:
    """Returns the variants to install: the best for each device, or all; if none fits, why not, a line for each."""
    if all_platforms:
        return tuple(parts), []
    candidates = [part.candidate for part in parts]
    environment = here(candidate.asked_for(candidates))
    if chosen := order.best(candidates, environment):
        return tuple(part for part in parts if part.candidate in chosen), []
    return (), [f"{choice.candidate.label}: {choice.problem}" for choice in order.decide(candidates, environment)]


def for_this_machine(choice: Choice) -> Choice:
    """Returns a choice with the variants for this machine alone. Raises KernelIncompatibleError if there is none."""
    release = choice.verified.release
    chosen, problems = variants_for(release.variants, environment.here, all_platforms=False)
    if not chosen:
        raise KernelIncompatibleError(f"{release.name} {release.version}", problems)
    return choice._replace(variants=chosen)


def _is_exact(numbers: Range) -> bool:
    return any(low == high and not excluded for low, high, excluded in numbers.bounds)


def parse_requirement(text: str) -> tuple[str, Range]:
    """Returns the name and the range of `org/name`, `org/name@2.3` or `org/name>=2,<3`. Raises KernelFormatError."""
    end = next((at for at, char in enumerate(text) if char in "@<>=! "), len(text))
    rest = text[end:].removeprefix("@").strip()
    name = names.check(text[:end], "the kernel")
    return name, version.parse_range(rest if text[end:].strip() else None, f"the version of {name}")
