"""Fetches the entry that a remote offers: signature, offer, fit, blob, digest, unpacking, admission."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge import settings
from opforge.builders.lookup.remotes import Request
from opforge.cache import staging
from opforge.cache.admit import admit
from opforge.cache.keys import canonical
from opforge.cache.maintenance import limits
from opforge.cache.records.fetched import trust_stamp
from opforge.cache.records.validity import Observation
from opforge.cache.store import NO_RECORD, Rejected, RejectedRecord, Sought
from opforge.errors import ExtraNotInstalledError, RemoteError, SignatureError, StoreError
from opforge.errors.base import printable
from opforge.events import emit
from opforge.warm.library import FULL_CHECK_BYTES, RECORD

from . import answers, blobs, kept, op_statements, topics
from .accepted import MAX_SECONDS, Lists, NotChosenError, counted, judge
from .op_statements import OpKind, OpOffer
from .remotes import Remote
from .signatures import trust
from .statements import Signed, UnreadableStatement
from .stores import open_store
from .stores.protocol import ObjectStore

log = logging.getLogger("opforge")
NOTHING = "it offers nothing for this description"


class FetchCandidate(NamedTuple):
    """An offer that can be used here."""

    offer: OpOffer
    item: Signed
    signer: str
    """The name of the key that was accepted; empty for an unsigned remote."""
    rank: int


def judged(store: ObjectStore, remote: Remote, request: Request, is_fresh: bool) -> Sought[list[FetchCandidate]]:
    """Returns the offers of a remote that can be used for a request, the best first. Fetches no blob.

    `is_fresh` reads the lists of withdrawals again. Raises RemoteError.
    """
    items = topics.read_items(store, op_statements.topic_of(request.description), str(remote))
    if not items:
        return [], (Rejected(str(remote), NOTHING),)
    trusted = None if remote.is_unsigned else trust.read()
    lists = Lists(store, remote, trusted or trust.Trust(""), is_fresh)
    judged_by = _Judge(remote, request, trusted, lists)
    usable, rejected, refused = list[FetchCandidate](), list[Rejected](), list[SignatureError]()
    for number, item in enumerate(items):
        where = f"{remote}, offer {number + 1}"
        try:
            usable.append(judged_by.candidate(item))
        except SignatureError as error:
            rejected.append(Rejected(where, error.reason))
            refused.append(error)
        except _Unfit as error:
            rejected.append(RejectedRecord.of(where, str(error), error.record))
        except (UnreadableStatement, NotChosenError) as error:
            rejected.append(Rejected(where, str(error)))
    for listed in lists.new:
        kept.drop_withdrawn(request.store.layout, listed)
    if refused:
        what = refused[0].what
        if len(refused) > 1:
            what = f"{request.op}: each of {len(refused)} offers of {remote}"
        log.warning("%s", SignatureError(what, counted([error.reason for error in refused]), refused[0].hint))
    return sorted(usable, key=lambda candidate: (-candidate.rank, candidate.offer.entry)), tuple(rejected)


class _Unfit(Exception):
    """An offer cannot be used here."""

    def __init__(self, problem: str, record: Mapping[str, Any]) -> None:
        super().__init__(problem)
        self.record = record
        """Its record."""


class _Judge:
    """Judges the offers of one remote for one request."""

    def __init__(self, remote: Remote, request: Request, trusted: trust.Trust | None, lists: Lists) -> None:
        self._request, self._trust, self._lists = request, trusted, lists
        self._what = f"{request.op}: an offer of {remote}"
        self._observed = Observation(request.root_paths, request.store.disk)
        self._rank = 0

    def candidate(self, item: Signed) -> FetchCandidate:
        """Returns an offer that can be used. Raises SignatureError, _Unfit, UnreadableStatement, NotChosenError.

        Whether it fits is known before a list of withdrawals is asked for. Raises StoreError too.
        """
        offer, signer = judge(item, self._what, self._fitting, self._trust, self._lists, OpKind.needs_withdrawals)
        return FetchCandidate(offer, item, signer, self._rank)

    def _fitting(self, data: bytes) -> OpOffer:
        """Returns an offer that fits this machine and these files, and notes its rank."""
        offer = op_statements.parse(data, self._request.description)
        if offer.record["op"] != self._request.op:
            raise UnreadableStatement(f"it is an op {offer.record['op']!r}")
        try:
            problem, self._rank = self._request.judge(offer.record)
            problem = problem or self._observed.problem(offer.record["inputs"]) or ""
        except (OSError, ValueError):  # such as a version that is none
            problem = NO_RECORD
        if problem:
            raise _Unfit(printable(problem), offer.record)  # it may hold texts of the record, which others have written
        return offer


FAILURES = (RemoteError, ExtraNotInstalledError, OSError)


class Fetch(NamedTuple):
    """What became of a request to one remote."""

    is_new: bool
    """Whether there is a new entry in the store."""
    rejected: tuple[Rejected, ...]
    """Each offer that was not taken, with the reason."""
    failure: Exception | None = None
    """One of FAILURES, for which the remote is left alone for a while."""


def fetch_from(remote: Remote, request: Request, is_fresh: bool) -> Fetch:
    """Fetches the best entry that a remote offers for a request."""
    began, rejected, problems = time.perf_counter(), list[Rejected](), list[str]()
    try:
        store = open_store(remote.url, settings.offline())
        usable, others = judged(store, remote, request, is_fresh)
        rejected += others
        for candidate in usable:
            problem = _take(store, remote, request, candidate)
            if not problem:
                offer = candidate.offer
                seconds = round(time.perf_counter() - began, 6)
                fields = {"bytes": offer.tree.blob.size, "path": str(remote), "result": offer.entry}
                emit("fetch", op=request.op, seconds=seconds, **fields)
                return Fetch(True, tuple(rejected))
            rejected.append(Rejected(f"{remote}, {candidate.offer.entry}", problem))
            problems.append(problem)
            if time.perf_counter() - began > MAX_SECONDS:
                hint = "Check the network, and the store with: opforge verify URL"
                raise StoreError(str(remote), "fetching", f"no offer was usable within {MAX_SECONDS:.0f} s", hint)
        answers.note_miss(remote, request, rejected[-1].reason if rejected else NOTHING)
        return Fetch(False, tuple(rejected))
    except FAILURES as error:
        return Fetch(False, tuple(rejected), error)
    finally:
        if problems:
            log.warning("%s: what %s offers cannot be used: %s", request.op, remote, counted(problems))


def _take(store: ObjectStore, remote: Remote, request: Request, candidate: FetchCandidate) -> str:
    """Fetches and admits what a candidate offers; returns why it cannot be used, or "". Raises StoreError."""
    offer, layout = candidate.offer, request.store.layout
    folder = staging.new_folder(layout, request.description)
    try:
        (library,) = blobs.fetch(store, offer.tree, folder, "entry")  # its digest was compared with the record's
        finished = os.path.join(folder, "entry")
        with open(os.path.join(finished, RECORD), "xb") as record:
            record.write(canonical(offer.record))
        note = kept.note_of(remote, candidate.item, candidate.signer, trust_stamp(request.store.disk))
        # What is hashed at each load need not be on the disk: if it is damaged, it is fetched again.
        synced = offer.record["size"] > FULL_CHECK_BYTES
        pointer = (request.description, note.to_bytes())
        admit(layout, finished, request.store.owners, fetched=pointer, synced=synced, sha256=library.sha256)
    except ValueError as error:  # BlobError too
        return str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    limits.enforce_settings(layout)
    return ""
