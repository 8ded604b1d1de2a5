"""Fetches artifacts of any kind: one loop over the remotes, and one rule for which failures count against a remote.

A remote is asked unless that is forbidden, or it failed within a minute. Each statement of the topic is judged: its
signature, what it offers, whether that fits, the lists of withdrawals. What was withdrawn from use is removed here. The
best that fits is fetched and placed. What this machine lacks, such as a trust file that can be read or a key, is never
a remote's failure.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from opforge.cache import staging
from opforge.cache.layout import Layout
from opforge.cache.maintenance import limits
from opforge.cache.records import fetched_offer
from opforge.cache.records.fetched_offer import FetchedOffer
from opforge.cache.store import Rejected, RejectedRecord, Sought
from opforge.cache.trees import File
from opforge.errors import (
    DamagedListError,
    ExtraNotInstalledError,
    RemoteError,
    SettingError,
    SignatureError,
    StoreBehindError,
    StoreError,
    TrustFileError,
)
from opforge.foundation import settings
from opforge.foundation.events import emit

from . import blobs, remembered_answers, reverification, topics
from .accepted_statements import MAX_SECONDS, Lists, counted, judge
from .kinds import Kind
from .offers import Offer
from .remotes import Remote, configured
from .signatures import trust_file
from .statements import Signed
from .stores import open_store
from .stores.protocol import ObjectStore

if TYPE_CHECKING:
    from .claims import Claim

log = logging.getLogger("opforge")
FAILURES = (RemoteError, ExtraNotInstalledError, OSError)
NOTHING = "it offers nothing for this description"
HINT = "Check the network, and the store with: opforge verify URL"


class UnfitError(ValueError):
    """An offer is for something else, or for another machine."""

    def __init__(self, problem: str, record: Mapping[str, Any] | None = None) -> None:
        super().__init__(problem)
        self.record = record
        """Of an op: its record."""


class Candidate(NamedTuple):
    """An offer that can be used here."""

    offer: Offer
    item: Signed
    signer: str
    """The name of the key that was accepted; empty for an unsigned remote."""
    rank: int
    stamp: tuple[int, ...]
    """The trust file's, from before it was read."""


class Taken(NamedTuple):
    """An offer that was fetched: what `Wanted.place` keeps."""

    offer: Offer
    folder: str
    """A new folder with its files, inside a staging folder; there is none if it has no tree."""
    files: Sequence[File]
    note: FetchedOffer
    """The record of its statement, to be stored beside it."""


class Wanted(ABC):
    """A requested artifact: of one kind, for a topic."""

    kind: ClassVar[Kind]
    most: ClassVar[int] = 1
    """How many are taken of one remote."""

    def __init__(self, what: str, topic: str, layout: Layout) -> None:
        """Keeps its name in messages, its topic, and the store that it is fetched into."""
        self.what, self.topic, self.layout = what, topic, layout

    @abstractmethod
    def rank(self, offer: Offer) -> int:
        """Returns the rank of an offer that can be used here: the highest is taken. Raises UnfitError, ValueError."""

    @abstractmethod
    def place(self, taken: Taken) -> str:
        """Stores a fetched artifact. Returns its name. Raises ValueError if it cannot be used, OSError."""

    def missed(self, remote: Remote) -> str:
        """Returns why a remote is not asked again now for what it had not; empty if it is."""
        return ""

    def note_miss(self, remote: Remote, reason: str) -> None:
        """Takes note of a remote that has nothing that can be used."""
        return


class ConfiguredRemotes:
    """The remotes that are asked, in order."""

    def __init__(self, remotes: Iterable[Remote] | None = None, is_fresh: bool = False) -> None:
        """Takes the remotes of the settings, unless others are given. `is_fresh` uses nothing that is remembered."""
        self.all = list(configured() if remotes is None else remotes)
        self._is_fresh = is_fresh
        self._failed: dict[Remote, str] = {}
        self._claim: Claim | None = None

    def asked(self, wanted: Wanted, is_miss: bool = False) -> Sought[list[Remote]]:
        """Returns the remotes that are asked now, and the others with the reason.

        With `is_miss`, those that had nothing are asked.
        """
        remotes, rejected = list[Remote](), list[Rejected]()
        for remote in self.all:
            reason = (
                remembered_answers.OFFLINE
                if settings.offline() and not remote.is_local
                else self._failed.get(remote, "")
            )
            if not reason and remote.is_unsigned:
                reason = wanted.kind.unsigned
            if not reason and not self._is_fresh:
                reason = remembered_answers.failure(remote) or ("" if is_miss else wanted.missed(remote))
            if reason:
                rejected.append(Rejected(str(remote), reason))
            else:
                remotes.append(remote)
        return remotes, tuple(rejected)

    def take(self, wanted: Wanted) -> Sought[bool]:
        """Takes the best that the first remote has that has any; returns whether there is something new."""
        remotes, rejected = self.asked(wanted)
        for one in rejected:
            log.info("%s: %s is not asked: %s", wanted.what, one.where, one.reason)
        is_new, others = self.take_of(remotes, wanted)
        return is_new, (*rejected, *others)

    def take_of(self, remotes: Sequence[Remote], wanted: Wanted) -> Sought[bool]:
        """Fetches from these remotes, as `take` does."""
        rejected = list[Rejected]()
        for remote in remotes:
            try:
                count, others = self._take(remote, wanted)
                rejected += others
                if count:
                    return True, tuple(rejected)
            except TrustFileError as error:  # of no remote
                log.warning("%s: nothing is fetched: %s", wanted.what, error)
                return False, (*rejected, Rejected(str(wanted.layout), str(error)))
            except FAILURES as error:
                rejected.append(Rejected(str(remote), self.failed(remote, wanted.what, error)))
        return False, tuple(rejected)

    def _take(self, remote: Remote, wanted: Wanted) -> Sought[int]:
        """Fetches the artifacts that a remote has. Returns their number. Raises FAILURES."""
        began, problems, count = time.perf_counter(), list[str](), 0
        trust_file.read()  # before a store is asked: without it no remote can be used
        store = open_store(remote.url, settings.offline())
        candidates, others = judged(store, remote, wanted, self._is_fresh)
        rejected = list(others)
        try:
            for candidate in candidates:
                offer = candidate.offer
                try:
                    result = _place(store, remote, wanted, candidate)
                    count += 1
                except ValueError as error:  # BlobError too
                    rejected.append(Rejected(f"{remote}, {offer.label}", str(error)))
                    problems.append(str(error))
                else:
                    if offer.trees:
                        seconds, size = round(time.perf_counter() - began, 6), offer.tree.blob.size
                        emit("fetch", op=offer.name, seconds=seconds, bytes=size, path=str(remote), result=result)
                if count == wanted.most:
                    break
                if time.perf_counter() - began > MAX_SECONDS:
                    if count:
                        break
                    problem = f"no offer was usable within {MAX_SECONDS:.0f} s"
                    raise StoreError(str(remote), "fetching", problem, HINT)
            if not count:
                wanted.note_miss(remote, rejected[-1].reason)
            return count, tuple(rejected)
        finally:
            if problems:
                log.warning("%s: what %s offers cannot be used: %s", wanted.what, remote, counted(problems))

    def drop_withdrawn(self, what: str, layout: Layout) -> None:
        """Removes from a store what any key has withdrawn from use, by lists that are read now. See the function."""
        try:
            trusted = trust_file.read()
        except TrustFileError:
            return  # the use of what was fetched says so
        signers = [each for each in trusted.keys if not each.problem(time.time())]
        for remote in self.all if signers else ():
            if remote.is_unsigned or (settings.offline() and not remote.is_local):
                continue
            try:
                _drop_listed(what, remote, trusted, signers, layout, is_fresh=True)
            except FAILURES as error:
                self.failed(remote, what, error)

    def offered(self, wanted: Wanted) -> Sought[str]:
        """Returns a line for the artifact that would be fetched; empty if there is none. Asks again after a miss."""
        remotes, rejected = self.asked(wanted, is_miss=True)
        for remote in remotes:
            try:
                store = open_store(remote.url, settings.offline())
                usable, unfit = judged(store, remote, wanted, self._is_fresh)
            except FAILURES as error:
                rejected += (Rejected(str(remote), str(error)),)
                continue
            rejected += unfit
            if usable:
                best = usable[0]
                signed = f"signed by {best.signer}" if best.signer else "unsigned"
                return f"{remote}: {best.offer.label} for {best.offer.target}, {signed}", rejected
        return "", rejected

    def failed(self, remote: Remote, what: str, failure: Exception) -> str:
        """Takes note of a failure, so that the remote is left alone for a while, and returns the reason."""
        if isinstance(failure, OSError) and not isinstance(failure, RemoteError):  # of this machine's disk
            log.warning("%s: what %s offers cannot be written here: %s", what, remote, failure)
            return f"the fetched files cannot be written here ({failure.strerror})"
        reason = str(failure).removeprefix(f"{remote}: ")
        is_its_own = remembered_answers.note_failure(remote, failure)
        if self._is_fresh:  # who asks so shows the reason, and may have many ops to ask for
            self._failed[remote] = f"it is not asked again: {reason}"
        else:
            left = ", which is left alone for a minute" if is_its_own else ""
            log.warning("%s: nothing was fetched from %s%s: %s", what, remote, left, reason)
        return reason

    # -- one machine makes it, and the others wait ---------------------------------------------------------------------

    def claim(
        self, wanted: Wanted, identity: Sequence[object], seconds: float, has_flags: bool = False
    ) -> Remote | None:
        """Takes the claim to make something, or waits for another node.

        Returns the remote to ask once more, as another node may have published it meanwhile; None if nothing was
        claimed, or the remote failed. `identity` is what the claim is for, `has_flags` whether it is made with the
        user's own flags. Nothing is claimed unless what is made here will be published: otherwise others would wait in
        vain.
        """
        target = next((remote for remote in self.asked(wanted, is_miss=True)[0] if remote.pushes), None)
        if target is None or (has_flags and not target.takes_flags) or not _can_sign(target):
            return None
        from .claims import Claim, name_of

        try:
            claim = Claim(open_store(target.url, settings.offline()), name_of(*identity))
            self._claim = claim.wait(wanted.what, seconds)
        except FAILURES as error:
            remembered_answers.note_failure(target, error)
            log.warning("%s: it may be built on other machines too: %s", wanted.what, error)
            return None
        return target

    def released_claim(self) -> Claim | None:
        """Returns the claim that this process has, for who ends it; None if there is none."""
        claim, self._claim = self._claim, None
        return claim

    def end_claim(self, is_published: bool) -> None:
        """Lets those go on that wait for this machine."""
        if claim := self.released_claim():
            claim.end(is_published)


def judged(store: ObjectStore, remote: Remote, wanted: Wanted, is_fresh: bool) -> Sought[list[Candidate]]:
    """Returns the offers of a remote that can be used, the best first. Fetches no blob.

    `is_fresh` reads the lists of withdrawals again. Raises FAILURES.
    """
    kind, stamp = wanted.kind, fetched_offer.trust_stamp()
    items = topics.read_items(store, kind.topic_file(wanted.topic), str(remote))
    if not items:
        return [], (Rejected(str(remote), NOTHING),)
    trusted = None if remote.is_unsigned else trust_file.read()
    lists = Lists(store, remote, trusted or trust_file.Trust(""), is_fresh)
    usable, rejected = list[Candidate](), list[Rejected]()
    refused, unreadable = list[SignatureError](), list[str]()
    what, rank = f"{wanted.what}: an offer of {remote}", 0

    def parse(data: bytes) -> Offer:  # whether it fits is known before a list of withdrawals is asked for
        nonlocal rank
        offer = kind.parse(data, wanted.topic)
        rank = wanted.rank(offer)
        return offer

    try:
        for number, item in enumerate(items):
            where = f"{remote}, offer {number + 1}"
            try:
                offer, accepted = judge(item, what, kind, trusted, lists, parse)
                if accepted.withdrawn:
                    raise ValueError(f"the key {accepted.key} has withdrawn it: {accepted.withdrawn}")
                usable.append(Candidate(offer, item, accepted.key, rank, stamp))
            except SignatureError as error:
                rejected.append(Rejected(where, error.reason))
                refused.append(error)
            except UnfitError as error:
                unfit = Rejected(where, str(error))
                rejected.append(RejectedRecord.of(where, str(error), error.record) if error.record else unfit)
            except ValueError as error:  # UnreadableStatement, or withdrawn
                rejected.append(Rejected(where, str(error)))
                unreadable.append(str(error))
    finally:  # what was read counts, also if a later request has failed
        for listed in lists.new:
            reverification.drop_withdrawn(wanted.layout, listed)
    _warn(wanted, remote, refused, unreadable)
    return sorted(usable, key=lambda candidate: (-candidate.rank, candidate.offer.label)), tuple(rejected)


def _can_sign(remote: Remote) -> bool:
    from .signatures import keys

    try:
        return remote.is_unsigned or bool(keys.signer())
    except (RemoteError, SettingError) as error:
        log.debug("nothing is claimed: %s", error)
        return False


def _warn(wanted: Wanted, remote: Remote, refused: Sequence[SignatureError], unreadable: Sequence[str]) -> None:
    """Says which offers are refused, and which cannot be read, in a line each."""
    if refused:
        what = refused[0].what
        if len(refused) > 1:
            what = f"{wanted.what}: each of {len(refused)} offers of {remote}"
        log.warning("%s", SignatureError(what, counted([error.reason for error in refused]), refused[0].hint))
    if unreadable:
        log.warning("%s: what %s offers cannot be used: %s", wanted.what, remote, counted(unreadable))


def _place(store: ObjectStore, remote: Remote, wanted: Wanted, candidate: Candidate) -> str:
    """Fetches and keeps what a candidate offers; returns its name. Raises ValueError, StoreError, OSError."""
    offer, note = candidate.offer, reverification.note_of(remote, candidate.item, candidate.signer, candidate.stamp)
    if not offer.trees:
        return wanted.place(Taken(offer, "", (), note))
    staged = staging.new_folder(wanted.layout, wanted.topic.rpartition("/")[2])
    try:
        files = blobs.fetch(store, offer.tree, staged, "tree")
        result = wanted.place(Taken(offer, os.path.join(staged, "tree"), files, note))
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    limits.enforce_settings(wanted.layout)
    return result


def drop_withdrawn(what: str, subject: str, layout: Layout) -> None:
    """Removes from a store what was fetched, and withdrawn from use by a key that may sign `subject`, as op:NAME.

    Reads the lists of withdrawals of these keys in all remotes: one that was read within an hour is not read again. Who
    has all that it needs asks no remote for it, and would not learn of a withdrawal. If a remote fails, what it was
    known to have withdrawn counts. A list that is damaged, or older than was seen, hides no other key's.
    """
    try:
        trusted = trust_file.read()
    except TrustFileError:
        return  # the use of what was fetched says so
    now = time.time()
    signers = [each for each in trusted.keys if each.may_sign(subject) and not each.problem(now)]
    for remote in configured():
        known = [noted for each in signers if (noted := remembered_answers.withdrawn(remote, each))]
        for noted in known:
            if noted.listed:
                reverification.drop_withdrawn(layout, noted.listed)
        if remote.is_unsigned or remembered_answers.not_asked(remote):
            continue
        try:
            _drop_listed(what, remote, trusted, signers, layout)
        except FAILURES as error:
            remembered_answers.note_failure(remote, error)
            _warn_unknown(what, remote, error)


def _drop_listed(
    what: str,
    remote: Remote,
    trusted: trust_file.Trust,
    signers: Iterable[trust_file.TrustedKey],
    layout: Layout,
    is_fresh: bool = False,
) -> None:
    """Removes what the lists of these keys in a remote have withdrawn. Raises FAILURES."""
    lists = Lists(open_store(remote.url, settings.offline()), remote, trusted, is_fresh)
    for each in signers:
        try:
            if listed := lists.of(each):
                reverification.drop_withdrawn(layout, listed)
        except (DamagedListError, StoreBehindError) as error:  # of this key's list alone
            _warn_unknown(what, remote, error)


def _warn_unknown(what: str, remote: Remote, error: Exception) -> None:
    reason = str(error).removeprefix(f"{remote}: ")
    log.warning("%s: what %s may have withdrawn is not known: %s", what, remote, reason)
