"""The remotes as a source of a look-up: what they have is fetched once on a node, and a failure costs one warning."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from opforge import settings
from opforge.builders.lookup.remotes import Request
from opforge.builders.waiting.no_builds import are_builds_forbidden
from opforge.cache.filesystem import lock
from opforge.cache.store import Rejected, Sought
from opforge.errors import LockTimeoutError, RemoteError, SettingError

from . import answers, fetch, fetched_entries
from .fetch import FAILURES
from .remotes import Remote, configured
from .signatures import trust
from .stores import open_store

if TYPE_CHECKING:
    from opforge.warm.library import Entry

    from .claims import Claim

log = logging.getLogger("opforge")


class Remotes:
    """The remotes that the settings name."""

    def __init__(self, remotes: Iterable[Remote] | None = None, is_fresh: bool = False) -> None:
        """Takes the remotes of the settings, unless others are given. `is_fresh` uses nothing that is remembered."""
        self._remotes = list(configured() if remotes is None else remotes)
        self._is_fresh = is_fresh
        self._failed: dict[Remote, str] = {}
        self._claim: Claim | None = None

    def fetch(self, request: Request) -> Sought[bool]:
        """Fetches the best entry of the first remote that has one; returns whether there is a new one."""
        rejected = list[Rejected]()
        try:
            is_accepted, others = fetched_entries.verify_again(request)
            rejected += others
            if is_accepted:
                return True, tuple(rejected)
            remotes, others = self._asked(request)
            rejected += others
            if remotes:
                trust.read()  # if it cannot be used, that is one error, and no remote's
        except FAILURES as error:
            log.warning("%s: nothing is fetched: %s", request.op, error)
            return False, (*rejected, Rejected(str(request.store.layout), str(error)))
        is_new, others = self._fetch_once(remotes, request) if remotes else (False, ())
        return is_new, (*rejected, *others)

    def offered(self, request: Request) -> Sought[str]:
        """Returns what would be fetched, as one line; empty if there is nothing. Asks again after a miss."""
        remotes, others = self._asked(request, is_miss=True)
        rejected = list(others)
        for remote in remotes:
            try:
                store = open_store(remote.url, settings.offline())
                usable, unfit = fetch.judged(store, remote, request, self._is_fresh)
            except FAILURES as error:
                rejected.append(Rejected(str(remote), str(error)))
                continue
            rejected += unfit
            if usable:
                best = usable[0]
                signed = f"signed by {best.signer}" if best.signer else "unsigned"
                line = f"{remote}: {best.offer.entry} for {best.offer.record['target']}, {signed}"
                return line, tuple(rejected)
        return "", tuple(rejected)

    def claim(self, request: Request, identity: Sequence[object]) -> bool:
        """Takes the claim to build, or waits for another node; returns whether its result was fetched meanwhile."""
        targets = [remote for remote in self._asked(request, is_miss=True)[0] if remote.pushes]
        if not targets or not self._can_publish(targets[0]):
            return False
        from .claims import MAX_WAIT_SECONDS, Claim, name_of

        limit = settings.lock_timeout()
        try:
            store = open_store(targets[0].url, settings.offline())
            claim = Claim(store, name_of(request.description, *identity))
            self._claim = claim.wait(request.op, MAX_WAIT_SECONDS if limit is None else limit)
        except FAILURES as error:
            answers.note_failure(targets[0], error)
            log.warning("%s: it may be built on other machines too: %s", request.op, error)
            return False
        # Another node may have published it between the look-up and the claim.
        is_fetched, _rejected = Remotes(targets[:1], is_fresh=True).fetch(request)
        if is_fetched and self._claim:
            self._claim.end(is_published=True)
            self._claim = None
        return is_fetched

    def _can_publish(self, remote: Remote) -> bool:
        """Returns whether what is built here will be published: otherwise others would wait in vain."""
        if settings.user_flags() and not remote.takes_flags:
            return False
        from .signatures import keys

        try:
            return remote.is_unsigned or bool(keys.signer())
        except (RemoteError, SettingError) as error:
            log.debug("nothing is claimed: %s", error)
            return False

    def built(self, request: Request, entry: Entry | None) -> None:
        """Publishes a new entry in the background, to the remotes that take what is built here; ends the claim."""
        claim, self._claim = self._claim, None
        targets = [remote for remote in self._remotes if remote.pushes]
        if entry is None or entry.origin != "built" or not targets:
            if claim:
                claim.end(is_published=False)
            return
        from . import background

        background.push(targets, request.op, entry, request.description, claim)

    def _asked(self, request: Request, is_miss: bool = False) -> Sought[list[Remote]]:
        """Returns the remotes that are asked now, and the others with the reason.

        With `is_miss`, those that had nothing are asked.
        """
        remotes, rejected = list[Remote](), list[Rejected]()
        for remote in self._remotes:
            reason = answers.OFFLINE if settings.offline() and not remote.is_local else self._failed.get(remote, "")
            if not reason and not self._is_fresh:
                reason = answers.failure(remote) or ("" if is_miss else self._miss(remote, request))
            if reason:
                rejected.append(Rejected(str(remote), reason))
            else:
                remotes.append(remote)
        return remotes, tuple(rejected)

    @staticmethod
    def _miss(remote: Remote, request: Request) -> str:
        """Returns why a remote is not asked again now; empty if it is, as for a load that would end in an error."""
        reason = answers.miss(remote, request)
        if not reason or settings.prebuilt() == "require":
            return ""
        return "" if are_builds_forbidden() else reason

    def _fetch_once(self, remotes: list[Remote], request: Request) -> Sought[bool]:
        """Asks the remotes under a lock, so that one process of a node fetches and the others wait for it."""
        rejected = list[Rejected]()
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
                    asked, others = self._asked(request)
                    rejected += others
                    remotes = [remote for remote in remotes if remote in asked]
                for remote in remotes:
                    fetched = fetch.fetch_from(remote, request, self._is_fresh)
                    rejected += fetched.rejected
                    if fetched.failure:
                        rejected.append(Rejected(str(remote), self._noted(remote, request, fetched.failure)))
                    if fetched.is_new:
                        return True, tuple(rejected)
        except LockTimeoutError as error:
            log.warning("%s", error)
        return False, tuple(rejected)

    def _noted(self, remote: Remote, request: Request, failure: Exception) -> str:
        """Takes note of a failure, so that the remote is left alone for a while, and returns the reason."""
        if isinstance(failure, OSError) and not isinstance(failure, RemoteError):  # of this machine's disk
            log.warning("%s: what %s offers cannot be written here: %s", request.op, remote, failure)
            return f"what it offers cannot be written here ({failure.strerror})"
        reason = str(failure).removeprefix(f"{remote}: ")
        is_its_own = answers.note_failure(remote, failure)
        if self._is_fresh:  # who asks so shows the reason, and may have many ops to ask for
            self._failed[remote] = f"it is not asked again: {reason}"
        else:
            left = ", which is left alone for a minute" if is_its_own else ""
            log.warning("%s: nothing was fetched from %s%s: %s", request.op, remote, left, reason)
        return reason
