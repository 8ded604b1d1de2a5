"""Fetches the entry that a remote offers: signature, offer, fit, blob, digest, unpacking, admission."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from opforge import settings
from opforge.builders.lookup.remotes import Request
from opforge.cache import staging
from opforge.cache.admit import admit
from opforge.cache.keys import canonical
from opforge.cache.maintenance import limits
from opforge.cache.records.entry import FULL_CHECK_BYTES, RECORD
from opforge.cache.records.fetched import Fetched, trust_stamp
from opforge.cache.records.validity import Observation
from opforge.cache.store import NO_RECORD, Rejected
from opforge.errors import SignatureError, StoreError
from opforge.events import emit

from . import answers, blobs, fetched_entries, op_statements, revocation, topics
from .op_statements import Offer
from .remotes import Remote
from .signatures import seen, trust
from .statements import Signed, UnreadableStatement
from .stores import open_store
from .stores.protocol import ObjectStore

log = logging.getLogger("opforge")
DAMAGED = "Remove that file, and publish again"
MAX_REASONS = 5
"""How many different reasons a warning has."""
MAX_SECONDS = 60.0
"""After this time no further offer of a remote is tried."""
NOTHING = "it offers nothing for this description"


class Candidate(NamedTuple):
    """An offer that can be used here."""

    offer: Offer
    item: Signed
    signer: str
    """The name of the key that was accepted; empty for an unsigned remote."""
    rank: int


def candidates(
    store: ObjectStore, remote: Remote, request: Request, is_fresh: bool, rejected: list[Rejected]
) -> list[Candidate]:
    """Returns the offers of a remote that can be used for a request, the best first. Fetches no blob.

    `is_fresh` reads the lists of revoked offers again. `rejected` gets every other offer, with the reason. Raises
    RemoteError.
    """
    stored_name = op_statements.topic_of(request.description)
    stored = store.get(stored_name, topics.MAX_FRAME_BYTES)
    if stored is None:
        rejected.append(Rejected(str(remote), NOTHING))
        return []
    try:
        items = topics.read_frame(stored.data)
    except ValueError as error:
        raise StoreError(str(remote), f"reading {stored_name}", str(error), DAMAGED) from error
    trusted = trust.Trust("") if remote.is_unsigned else trust.read()
    judge = _Judge(store, remote, request, trusted, is_fresh)
    usable, refused = list[Candidate](), list[SignatureError]()
    for number, item in enumerate(items):
        where = f"{remote}, offer {number + 1}"
        try:
            usable.append(judge.candidate(item, where))
        except SignatureError as error:
            rejected.append(Rejected(where, error.reason))
            refused.append(error)
        except _Unfit as error:
            rejected.append(Rejected(where, str(error)))
    if refused:
        what = refused[0].what
        if len(refused) > 1:
            what = f"{request.op}: each of {len(refused)} offers of {remote}"
        log.warning("%s", SignatureError(what, _counted([error.reason for error in refused]), refused[0].hint))
    return sorted(usable, key=lambda candidate: (-candidate.rank, candidate.offer.entry))


def _counted(reasons: Sequence[str]) -> str:
    """Returns the different reasons, each with how often it is there: a remote may have many bad offers."""
    counts = Counter(reasons)
    texts = [reason if count == 1 else f"{reason} ({count} times)" for reason, count in counts.most_common(MAX_REASONS)]
    more = len(counts) - len(texts)
    return "; ".join([*texts, f"and {more} other reasons"] if more else texts)


class _Unfit(Exception):
    """An offer cannot be used here."""


class _Judge:
    """Judges the offers of one remote for one request."""

    def __init__(
        self, store: ObjectStore, remote: Remote, request: Request, trusted: trust.Trust, is_fresh: bool
    ) -> None:
        self._store, self._remote, self._request = store, remote, request
        self._trust, self._is_fresh = trusted, is_fresh
        self._observed = Observation(request.root_paths, request.store.disk)
        self._lists: dict[str, tuple[revocation.Revocations | None, str]] = {}

    def candidate(self, item: Signed, where: str) -> Candidate:
        """Returns an offer that can be used. Raises SignatureError, _Unfit, StoreError."""
        what = f"{self._request.op}: an offer of {self._remote}"
        signers = [] if self._remote.is_unsigned else self._trust.signers(what, item.data, item.signatures)
        try:
            offer = op_statements.parse(item.data, self._request.description)
        except UnreadableStatement as error:
            raise _Unfit(str(error)) from error
        if offer.record["op"] != self._request.op:
            raise _Unfit(f"it is an op {offer.record['op']!r}")
        if not self._remote.is_unsigned:
            signers = trust.allowed(signers, f"op:{self._request.op}", what)
        rank = self._rank(offer)
        signer = self._unrevoked(what, offer, signers) if signers else ""
        return Candidate(offer, item, signer, rank)

    def _rank(self, offer: Offer) -> int:
        """Returns the rank of an offer. Raises _Unfit if it does not fit this machine and these files."""
        try:
            problem, rank = self._request.judge(offer.record)
            problem = problem or self._observed.problem(offer.record["inputs"]) or ""
        except (OSError, ValueError):  # such as a version that is none
            problem, rank = NO_RECORD, 0
        if problem:
            raise _Unfit(problem)
        return rank

    def _unrevoked(self, what: str, offer: Offer, signers: Sequence[trust.TrustedKey]) -> str:
        """Returns the name of a signer whose list does not revoke the offer. Raises SignatureError."""
        reasons = []
        for trusted in signers:
            name = trusted.key.name
            if name not in self._lists:
                self._lists[name] = self._list_of(trusted)
            listed, problem = self._lists[name]
            if listed is None:
                reasons.append(problem or f"there is no list of revoked offers of the key {name}")
            elif problem := listed.age_problem(self._trust.revocation_days, time.time()):
                reasons.append(problem)
            elif offer.entry in listed.entries:
                reasons.append(f"the key {name} has revoked it")
            else:
                return name
        hint = "The holder of the key renews the list with: opforge remote revoke URL"
        raise SignatureError(what, "; ".join(reasons), hint)

    def _list_of(self, trusted: trust.TrustedKey) -> tuple[revocation.Revocations | None, str]:
        """Returns the list of a key; None with the reason if it is older than one that was seen. Raises StoreError."""
        remembered = answers.revocations(self._remote, trusted, seconds=float("inf"))
        recent = None if self._is_fresh else answers.revocations(self._remote, trusted)
        if recent and not self._seen_problem(trusted, recent):
            return recent, ""
        try:
            listed = revocation.fetch(self._store, trusted)
        except ValueError as error:
            raise StoreError(str(self._remote), "reading a list of revoked offers", str(error), DAMAGED) from error
        if listed is None:
            return None, ""
        problem = self._seen_problem(trusted, listed)
        if not problem and remembered and remembered.date > listed.date:  # where no state can be kept
            problem = f"it is {_shown(listed.seen.number)}, and {_shown(remembered.seen.number)} was seen before"
        if problem:
            return None, f"the list of revoked offers of {trusted.key.name} is not used: {problem}"
        answers.note_revocations(self._remote, trusted, listed)
        fetched_entries.drop_revoked(self._request.store.layout, listed)
        return listed, ""

    def _seen_problem(self, trusted: trust.TrustedKey, listed: revocation.Revocations) -> str:
        return seen.problem(self._remote.url, trusted.key, listed.seen, self._trust.requires_state, _shown)


def _shown(number: int) -> str:
    """Returns how messages name a list of revoked offers."""
    return f"the one of {time.strftime(revocation.DATE, time.gmtime(number))}"


def fetch_from(remote: Remote, request: Request, is_fresh: bool, rejected: list[Rejected]) -> bool:
    """Fetches the best entry that a remote offers for a request; returns whether there was one.

    Raises RemoteError, ExtraNotInstalledError, OSError: then the remote is left alone for a while.
    """
    began, reasons, problems = time.perf_counter(), list[Rejected](), list[str]()
    try:
        store = open_store(remote.url, settings.offline())
        for candidate in candidates(store, remote, request, is_fresh, reasons):
            problem = _take(store, remote, request, candidate)
            if not problem:
                offer = candidate.offer
                seconds = round(time.perf_counter() - began, 6)
                fields = {"bytes": offer.tree.blob.size, "path": str(remote), "result": offer.entry}
                emit("fetch", op=request.op, seconds=seconds, **fields)
                return True
            reasons.append(Rejected(f"{remote}, {candidate.offer.entry}", problem))
            problems.append(problem)
            if time.perf_counter() - began > MAX_SECONDS:
                hint = "Check the network, and the store with: opforge remote verify URL"
                raise StoreError(str(remote), "fetching", f"no offer was usable within {MAX_SECONDS:.0f} s", hint)
        answers.note_miss(remote, request, reasons[-1].reason if reasons else NOTHING)
        return False
    finally:
        rejected += reasons
        if problems:
            log.warning("%s: what %s offers cannot be used: %s", request.op, remote, _counted(problems))


def _take(store: ObjectStore, remote: Remote, request: Request, candidate: Candidate) -> str:
    """Fetches and admits what a candidate offers; returns why it cannot be used, or "". Raises StoreError."""
    offer, layout = candidate.offer, request.store.layout
    folder = staging.new_folder(layout, request.description)
    try:
        with open(os.path.join(folder, "blob"), "w+b") as file:
            store.download(offer.tree.blob.name, file, offer.tree.blob.size)
            finished = os.path.join(folder, "entry")
            blobs.unpack(file, offer.tree, finished)
        with open(os.path.join(finished, RECORD), "xb") as record:
            record.write(canonical(offer.record))
        note = Fetched(
            remote=str(remote),
            offer=candidate.item.data.decode("ascii"),
            signatures=tuple(map(str, candidate.item.signatures)),
            signer=candidate.signer,
            trust=trust_stamp(request.store.disk),
        )
        # What is hashed at each load need not be on the disk: if it is damaged, it is fetched again.
        synced = offer.record["size"] > FULL_CHECK_BYTES
        admit(layout, finished, request.store.owners, fetched=(request.description, note.to_bytes()), synced=synced)
    except StoreError as error:
        if store.get(op_statements.topic_of(request.description), topics.MAX_FRAME_BYTES) is None:
            raise  # it can no longer be read at all
        return str(error)
    except ValueError as error:  # BlobError too
        return str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    limits.enforce_settings(layout)
    return ""
