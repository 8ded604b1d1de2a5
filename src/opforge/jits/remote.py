"""Pages that travel: fetched if a key signed them that is trusted for `jit:ADAPTER/LABEL`, and published as ops are."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence

from opforge.cache.layout import Layout
from opforge.errors import SettingError, TrustFileError
from opforge.foundation import settings
from opforge.foundation.files import make_folder, write_file
from opforge.remote import remembered_answers, reverification, take
from opforge.remote.offers import MAX_PAGES, Offer
from opforge.remote.publish import push
from opforge.remote.remotes import Remote
from opforge.remote.signatures import keys, trust_file
from opforge.remote.stores import open_store
from opforge.remote.take import FAILURES, Taken, UnfitError, Wanted

from . import features, page, store
from .kind import JIT
from .page import SIGNED, TREE, Page, PageTopic

log = logging.getLogger("opforge")


def kept_problem(read: Page, where: PageTopic) -> str:
    """Returns why a fetched page must not be used now; empty if it may. The rule is that of `remote/reverification.py`.

    Raises OSError if the record of its statement cannot be read, ValueError if the record is damaged.
    """

    def expected(offer: Offer) -> None:
        if offer.tree.digest != read.digest or offer.facts != read.facts:
            raise ValueError(f"{page.RECORD} differs from the signed one")

    return reverification.problem(os.path.join(read.folder, SIGNED), JIT, str(where), f"{where.name}: a page", expected)


class _Pages(Wanted):
    """The pages of a topic that fit this machine and have something new, the newest first."""

    kind, most = JIT, MAX_PAGES

    def __init__(self, where: PageTopic, layout: Layout, holds: str) -> None:
        """Takes the topic, the store, and what its pages may hold."""
        super().__init__(where.name, str(where), layout)
        self._topic, self._holds = where, holds
        self.known: Collection[str] = ()
        """The parts that are there."""

    def rank(self, offer: Offer) -> int:
        """Returns when a page was made."""
        if problem := store.unfit(offer.facts, self._holds) or features.lacking(offer.facts["features"]):
            raise UnfitError(problem)
        if {*offer.facts["parts"]} <= {*self.known}:
            raise UnfitError("all that is in it is here")
        return int(offer.facts["made"])

    def place(self, taken: Taken) -> str:
        """Keeps a page. Raises ValueError for other files than its list's, OSError."""
        digest, finished = taken.offer.tree.digest, os.path.join(os.path.dirname(taken.folder), "page")
        make_folder(finished)
        os.rename(taken.folder, os.path.join(finished, TREE))
        page.check_tree(os.path.join(finished, TREE), digest)
        page.write_record(finished, digest, taken.offer.facts)
        write_file(os.path.join(finished, SIGNED), taken.note.to_bytes())
        return os.path.basename(store.add(self.layout, self._topic, finished, digest))


def drop_withdrawn(where: PageTopic, layout: Layout) -> None:
    """Removes withdrawn fetched pages. A process that needs no further page learns of withdrawals only here."""
    take.drop_withdrawn(where.name, f"{JIT.name}:{where.name}", layout)


class PageRemotes:
    """The remotes in the settings, for one topic. The failure of a remote is a warning."""

    def __init__(self, where: PageTopic, layout: Layout, holds: str) -> None:
        """Takes the topic, the store of this machine, and what its pages may hold."""
        self._wanted, self._remotes = _Pages(where, layout, holds), take.ConfiguredRemotes()

    def fetch(self, known: Collection[str]) -> bool:
        """Fetches the pages that have entries not known here; returns whether there are new pages."""
        self._wanted.known = known
        is_new, rejected = self._remotes.take(self._wanted)
        for one in rejected:
            log.info("%s: %s", self._wanted.what, one)
        return is_new

    def claim(self, seconds: float) -> bool:
        """Takes the claim to compile it, or waits at most so many seconds for a machine that has it.

        Returns whether that one has published something.
        """
        try:
            trust_file.read()
        except TrustFileError:  # `fetch` has warned of it: nothing that another machine publishes could be used
            return False
        target = self._remotes.claim(self._wanted, (JIT.name, self._wanted.topic), seconds)
        is_fetched = target is not None and self._remotes.take_of([target], self._wanted)[0]
        if is_fetched:
            self.end(True)
        return is_fetched

    def end(self, is_published: bool) -> None:
        """Lets other machines that wait for this one continue."""
        self._remotes.end_claim(is_published)

    def publish(self, folders: Sequence[str]) -> None:
        """Publishes pages to the remotes that take what is made here, and ends the claim."""
        is_published = False
        try:
            for remote in self._remotes.asked(self._wanted, is_miss=True)[0] if folders else ():
                if remote.pushes:
                    is_published |= self._publish_to(remote, folders)
        finally:
            self.end(is_published)

    def _publish_to(self, remote: Remote, folders: Sequence[str]) -> bool:
        try:
            objects = open_store(remote.url, settings.offline())
            for folder in folders:
                push(objects, remote, JIT, JIT.at(folder), keys.signer())
            return True
        except (*FAILURES, SettingError) as error:
            log.warning("%s: compiled code was not published to %s: %s", self._wanted.what, remote, error)
            remembered_answers.note_failure(remote, error)
            return False
