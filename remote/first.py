"""Takes the first statement of a topic that is accepted: for kinds of which any that fits is right."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from opforge import settings
from opforge.cache.layout import Layout
from opforge.cache.records import fetched
from opforge.cache.records.fetched import Fetched
from opforge.errors import (
    DamagedListError,
    ExtraNotInstalledError,
    RemoteError,
    SignatureError,
    StoreBehindError,
    StoreError,
    TrustFileError,
)

from . import answers, kept, topics
from .accepted import MAX_SECONDS, Lists, counted
from .remotes import Remote, configured
from .signatures import trust
from .statements import Signed
from .stores import open_store
from .stores.protocol import ObjectStore

log = logging.getLogger("opforge")


class Asked(NamedTuple):
    """A remote that is asked, and what decides which of its statements are accepted."""

    remote: Remote
    store: ObjectStore
    trusted: trust.Trust | None
    """None for a remote with unsigned=1."""
    lists: Lists
    stamp: tuple[int, ...]
    """The trust file's, from before it was read."""

    def note(self, item: Signed, signer: str) -> Fetched:
        """Returns what is kept of a statement."""
        return kept.note_of(self.remote, item, signer, self.stamp)


def take(what: str, topic: str, layout: Layout, taken: Callable[[Asked, Signed], bool], unsigned: str = "") -> bool:
    """Asks the remotes for a topic in order, until something is taken; returns whether that is so.

    Args:
        what: Names it in messages.
        topic: The name of the topic's file.
        layout: The store. What a list of withdrawals takes back is removed from it.
        taken: Verifies a statement and keeps what it offers; returns False if it is for another machine. Raises
            SignatureError, ValueError for what cannot be used, RemoteError, OSError.
        unsigned: Why a remote with unsigned=1 is not asked, unless that is empty.
    """
    for remote in configured():
        if reason := answers.not_asked(remote, unsigned):
            log.info("%s: %s is not asked: %s", what, remote, reason)
            continue
        try:
            if _take_from(remote, what, topic, layout, taken):
                return True
        except TrustFileError as error:  # of no remote
            log.warning("%s: nothing is fetched: %s", what, error)
            return False
        except (RemoteError, ExtraNotInstalledError, OSError) as error:
            answers.note_failure(remote, error)
            reason = str(error).removeprefix(f"{remote}: ")
            log.warning("%s: nothing was fetched from %s: %s", what, remote, reason)
    return False


def _take_from(remote: Remote, what: str, topic: str, layout: Layout, taken: Callable[[Asked, Signed], bool]) -> bool:
    stamp = fetched.trust_stamp()
    by = trust.read()  # before the store is asked: if it cannot be used, nothing of any remote is
    store = open_store(remote.url, settings.offline())
    items = topics.read_items(store, topic, str(remote))
    if not items:
        return False
    trusted = None if remote.is_unsigned else by
    lists, problems = Lists(store, remote, trusted or trust.Trust(""), False), list[str]()
    asked = Asked(remote, store, trusted, lists, stamp)
    end = time.monotonic() + MAX_SECONDS
    try:
        for item in items:
            try:
                if taken(asked, item):
                    return True
            except SignatureError as error:
                problems.append(error.reason)
            except ValueError as error:  # of a statement, a blob, or its files
                problems.append(str(error))
                if time.monotonic() > end:
                    hint = "Check the network, and the store with: opforge verify URL"
                    reason = f"nothing was usable within {MAX_SECONDS:.0f} s"
                    raise StoreError(str(remote), "fetching", reason, hint) from error
        return False
    finally:
        for listed in lists.new:
            kept.drop_withdrawn(layout, listed)
        if problems:
            log.warning("%s: what %s has is not used: %s", what, remote, counted(problems))


def drop_withdrawn(what: str, subject: str, layout: Layout) -> None:
    """Removes from a store what was fetched, and withdrawn from use by a key that may sign `subject`, as op:NAME.

    Reads the lists of withdrawals of these keys in all remotes: one that was read within an hour is not read again. Who
    has all that it needs asks no remote for it, and would not learn of a withdrawal. If a remote fails, what it was
    known to have withdrawn counts. A list that is damaged, or older than was seen, hides no other key's.
    """
    try:
        trusted = trust.read()
    except TrustFileError:
        return  # the use of what was fetched says so
    now = time.time()
    signers = [each for each in trusted.keys if each.may_sign(subject) and not each.problem(now)]
    for remote in configured():
        known = [noted for each in signers if (noted := answers.withdrawn(remote, each))]
        for noted in known:
            if noted.listed:
                kept.drop_withdrawn(layout, noted.listed)
        if remote.is_unsigned or answers.not_asked(remote):
            continue
        try:
            lists = Lists(open_store(remote.url, settings.offline()), remote, trusted, False)
            for each in signers:
                try:
                    if listed := lists.of(each):
                        kept.drop_withdrawn(layout, listed)
                except (DamagedListError, StoreBehindError) as error:  # of this key's list alone
                    _warn_unknown(what, remote, error)
        except (RemoteError, ExtraNotInstalledError, OSError) as error:
            answers.note_failure(remote, error)
            _warn_unknown(what, remote, error)


def _warn_unknown(what: str, remote: Remote, error: Exception) -> None:
    reason = str(error).removeprefix(f"{remote}: ")
    log.warning("%s: what %s may have withdrawn is not known: %s", what, remote, reason)
