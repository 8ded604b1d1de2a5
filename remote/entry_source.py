"""The remotes as a source of a look-up: an entry is fetched once on a node, and a failure costs one warning."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from opforge.builders.lookup.remotes import Request
from opforge.builders.no_builds import are_builds_forbidden
from opforge.cache.admit import admit
from opforge.cache.filesystem import lock
from opforge.cache.keys import canonical
from opforge.cache.records.entry import compared_inputs
from opforge.cache.records.validity import Observation
from opforge.cache.store import NO_RECORD, Rejected, Sought
from opforge.errors import LockTimeoutError
from opforge.errors.base import printable
from opforge.fast_path.library import FULL_CHECK_BYTES, RECORD
from opforge.foundation import settings

from . import fetched_entries, remembered_answers
from .offers import Offer
from .op_statements import OP
from .remotes import Remote
from .signatures import trust_file
from .statements import UnreadableStatement
from .take import FAILURES, ConfiguredRemotes, Taken, UnfitError, Wanted

if TYPE_CHECKING:
    from opforge.cache.layout import Layout
    from opforge.fast_path.library import Entry

log = logging.getLogger("opforge")


class WantedEntry(Wanted):
    """An entry for a request."""

    kind = OP

    def __init__(self, request: Request) -> None:
        """Keeps the request of a look-up that has found nothing."""
        super().__init__(request.op, request.description, request.store.layout)
        self.request = request
        self._observed = Observation(request.root_paths, request.store.disk)

    def rank(self, offer: Offer) -> int:
        """Returns the rank of an entry that fits this machine and these files."""
        record = offer.facts["record"]
        if record["op"] != self.request.op:
            raise UnreadableStatement(f"it is an op {record['op']!r}")
        rank = 0
        try:
            problem, rank = self.request.judge(record)
            problem = problem or self._observed.problem(*compared_inputs(record)) or ""
        except (OSError, ValueError):  # such as a version that is none
            problem = NO_RECORD
        if problem:
            raise UnfitError(printable(problem), record)  # it may hold texts of the record, which others have written
        return rank

    def place(self, taken: Taken) -> str:
        """Admits an entry. Raises ValueError, OSError."""
        record, store = taken.offer.facts["record"], self.request.store
        (library,) = taken.files  # its digest was compared with the record's
        with open(os.path.join(taken.folder, RECORD), "xb") as file:
            file.write(canonical(record))
        # What is hashed at each load need not be on the disk: if it is damaged, it is fetched again.
        synced = record["size"] > FULL_CHECK_BYTES
        pointer = (self.request.description, taken.note.to_bytes())
        admit(store.layout, taken.folder, store.owners, fetched=pointer, synced=synced, sha256=library.sha256)
        return taken.offer.label

    def missed(self, remote: Remote) -> str:
        """Returns why a remote is not asked again now; empty if it is, as for a load that would end in an error."""
        reason = remembered_answers.miss(remote, self.request)
        if not reason or settings.prebuilt() == "require":
            return ""
        return "" if are_builds_forbidden() else reason

    def note_miss(self, remote: Remote, reason: str) -> None:
        """Remembers that a remote has nothing that can be used."""
        remembered_answers.note_miss(remote, self.request, reason)


class RemoteEntries:
    """The remotes that the settings name."""

    def __init__(self, remotes: Iterable[Remote] | None = None, is_fresh: bool = False) -> None:
        """Takes the remotes of the settings, unless others are given. `is_fresh` uses nothing that is remembered."""
        self._remotes = ConfiguredRemotes(remotes, is_fresh)

    def fetch(self, request: Request) -> Sought[bool]:
        """Fetches the best entry of the first remote that has one; returns whether there is a new one."""
        rejected, wanted = list[Rejected](), WantedEntry(request)
        try:
            is_accepted, others = fetched_entries.usable(request)
            rejected += others
            if is_accepted:
                return True, tuple(rejected)
            remotes, others = self._remotes.asked(wanted)
            rejected += others
            if remotes:
                trust_file.read()  # if it cannot be used, that is one error, and no remote's
        except FAILURES as error:
            log.warning("%s: nothing is fetched: %s", request.op, error)
            return False, (*rejected, Rejected(str(request.store.layout), str(error)))
        is_new, others = self._fetch_once(remotes, wanted) if remotes else (False, ())
        return is_new, (*rejected, *others)

    def drop_withdrawn(self, layout: Layout) -> None:
        """Removes from a store what its signer has withdrawn from use: who has all that it needs fetches nothing."""
        self._remotes.drop_withdrawn("fetch", layout)

    def offered(self, request: Request) -> Sought[str]:
        """Returns a line for the entry that would be fetched; empty if there is none. Asks again after a miss."""
        return self._remotes.offered(WantedEntry(request))

    def claim(self, request: Request, identity: Sequence[object]) -> bool:
        """Takes the claim to build, or waits for another node; returns whether its result was fetched meanwhile."""
        from .claims import MAX_WAIT_SECONDS

        limit = settings.lock_timeout()
        seconds, parts = MAX_WAIT_SECONDS if limit is None else limit, (request.description, *identity)
        target = self._remotes.claim(WantedEntry(request), parts, seconds, bool(settings.user_flags()))
        is_fetched = target is not None and RemoteEntries([target], is_fresh=True).fetch(request)[0]
        if is_fetched:
            self._remotes.end_claim(is_published=True)
        return is_fetched

    def built(self, request: Request, entry: Entry | None) -> None:
        """Publishes a new entry in the background, to the remotes that take what is built here; ends the claim."""
        targets = [remote for remote in self._remotes.all if remote.pushes]
        if entry is None or entry.origin != "built" or not targets:
            return self._remotes.end_claim(is_published=False)
        from . import background

        claim = self._remotes.released_claim()
        return background.push(targets, request.op, entry, request.description, claim)

    def _fetch_once(self, remotes: list[Remote], wanted: WantedEntry) -> Sought[bool]:
        """Asks the remotes under a lock, so that one process of a node fetches and the others wait for it."""
        rejected, request = list[Rejected](), wanted.request
        layout = request.store.layout
        before = fetched_entries.names(layout, request.description)

        def has_news() -> bool:
            return fetched_entries.names(layout, request.description) != before

        path = layout.path("locks", request.description)
        try:
            with lock.acquire(path, f"{request.op}, which is fetched", settings.lock_timeout(), has_news) as result:
                # Since this process looked, another may have fetched it, even before this one waited for the lock.
                if request.fetched():
                    return True, ()
                if result is lock.LockResult.WAITED:  # the process that had it may have learned that there is nothing
                    asked, others = self._remotes.asked(wanted)
                    rejected += others
                    remotes = [remote for remote in remotes if remote in asked]
                is_new, others = self._remotes.take_of(remotes, wanted)
                return is_new, (*rejected, *others)
        except LockTimeoutError as error:
            log.warning("%s", error)
        return False, tuple(rejected)
