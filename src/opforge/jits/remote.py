"""Pages that travel: fetched if a key signed them that is trusted for `jit:ADAPTER/LABEL`, and published as ops are."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable

from opforge.cache.layout import Layout
from opforge.errors import SettingError
from opforge.foundation import settings
from opforge.foundation.files import write_file
from opforge.remote import kept, remembered_answers, take
from opforge.remote.offers import MAX_PAGES, Offer
from opforge.remote.publish import push
from opforge.remote.signatures import keys
from opforge.remote.stores import open_store
from opforge.remote.take import FAILURES, Taken, UnfitError, Wanted

from . import page, store
from .kind import JIT
from .page import SIGNED, TREE, Page, Topic

log = logging.getLogger("opforge")


def kept_problem(read: Page, where: Topic) -> str:
    """Returns why a fetched page must not be used now; empty if it may. The rule is that of `remote/kept.py`.

    Raises OSError if what is kept of its statement cannot be read, ValueError if that is damaged.
    """

    def expected(offer: Offer) -> None:
        if offer.tree.digest != read.digest or offer.facts != read.facts:
            raise ValueError(f"{page.RECORD} says other than what was signed")

    return kept.problem(os.path.join(read.folder, SIGNED), JIT, str(where), f"{where.name}: a page", expected)


class _Pages(Wanted):
    """The pages of a topic that fit this machine and have something new, the newest first."""

    kind, most = JIT, MAX_PAGES

    def __init__(self, where: Topic, layout: Layout, holds: str, known: Collection[str]) -> None:
        """Takes the topic, the store, what its pages may hold, and the parts that are there."""
        super().__init__(where.name, str(where), layout)
        self._topic, self._holds, self._known = where, holds, known

    def rank(self, offer: Offer) -> int:
        """Returns when a page was made."""
        if problem := store.unfit(offer.facts, self._holds):
            raise UnfitError(problem)
        if {*offer.facts["parts"]} <= {*self._known}:
            raise UnfitError("all that is in it is here")
        return int(offer.facts["made"])

    def place(self, taken: Taken) -> str:
        """Keeps a page. Raises ValueError for other files than its list's, OSError."""
        digest, finished = taken.offer.tree.digest, os.path.join(os.path.dirname(taken.folder), "page")
        os.mkdir(finished, 0o700)
        os.rename(taken.folder, os.path.join(finished, TREE))
        page.check_tree(os.path.join(finished, TREE), digest)
        page.write_record(finished, digest, taken.offer.facts)
        write_file(os.path.join(finished, SIGNED), taken.note.to_bytes())
        return os.path.basename(store.add(self.layout, self._topic, finished, digest))


def fetch(where: Topic, layout: Layout, holds: str, known: Collection[str]) -> bool:
    """Fetches the pages that have what is not known; returns whether there are new ones. What fails is a warning."""
    is_new, rejected = take.ConfiguredRemotes().take(_Pages(where, layout, holds, known))
    for one in rejected:
        log.info("%s: %s", where.name, one)
    return is_new


def drop_withdrawn(where: Topic, layout: Layout) -> None:
    """Removes what was fetched and is withdrawn by now: who has all that it needs learns of it in no other way."""
    take.drop_withdrawn(where.name, f"{JIT.name}:{where.name}", layout)


def publish(where: Topic, layout: Layout, folders: Iterable[str]) -> None:
    """Publishes pages to the remotes that take what is made here. What fails is a warning."""
    remotes = take.ConfiguredRemotes()
    for remote in remotes.asked(_Pages(where, layout, "", ()), is_miss=True)[0]:
        if remote.pushes:
            try:
                objects = open_store(remote.url, settings.offline())
                for folder in folders:
                    push(objects, remote, JIT, JIT.at(folder), keys.signer())
            except (*FAILURES, SettingError) as error:
                log.warning("%s: what was compiled was not published to %s: %s", where.name, remote, error)
                remembered_answers.note_failure(remote, error)
