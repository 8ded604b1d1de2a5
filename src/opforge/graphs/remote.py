"""Bundles that travel: fetched if a key signed them that is trusted for `compiled:NAME`, and published as ops are.

A bundle holds pickles and machine code. So it is never taken from a remote with `unsigned=1`, and one that was fetched
is verified again at each use: a key may have been revoked since.
"""

from __future__ import annotations

import logging
import os

from opforge.cache.store import Store
from opforge.errors import SettingError, TrustFileError
from opforge.foundation import settings
from opforge.foundation.files import write_file
from opforge.remote import kept, remembered_answers, take
from opforge.remote.offers import Offer
from opforge.remote.publish import push
from opforge.remote.remotes import Remote
from opforge.remote.signatures import keys, trust
from opforge.remote.stores import open_store
from opforge.remote.take import FAILURES, Taken, UnfitError, Wanted

from . import bundle, store, topic
from .bundle import SIGNED, TREE, Bundle, BundleError
from .statements import COMPILED
from .topic import Topic

log = logging.getLogger("opforge")


def kept_problem(path: str, read: Bundle, where: Topic) -> str:
    """Returns why a fetched bundle must not be used now; empty if it may. `path` is what is kept of its statement.

    The rule is that of `remote/kept.py`. Raises OSError if it cannot be read, BundleError if it is damaged: nothing
    makes it usable again.
    """

    def expected(offer: Offer) -> None:
        if offer.tree.digest != read.digest or offer.facts != read.facts:
            raise BundleError(f"{bundle.RECORD} says other than what was signed")

    try:
        return kept.problem(path, COMPILED, str(where), f"{where.name}: a bundle", expected)
    except BundleError:
        raise
    except ValueError as error:
        raise BundleError(f"its {SIGNED} cannot be used: {error}") from error


class _Bundles(Wanted):
    """The bundles of a topic that fit this machine, the newest first."""

    kind, most = COMPILED, store.MAX_BUNDLES

    def __init__(self, where: Topic, among: Store) -> None:
        """Takes the topic, and the store that they are for."""
        super().__init__(where.name, str(where), among.layout)
        self._topic, self._store = where, among

    def rank(self, offer: Offer) -> int:
        """Returns when a bundle was made."""
        if problem := topic.lacking(offer.facts["features"]):
            raise UnfitError(problem)
        return int(offer.facts["made"])

    def place(self, taken: Taken) -> str:
        """Keeps a bundle. Raises ValueError for other files than its statement's, OSError."""
        offer, finished = taken.offer, os.path.join(os.path.dirname(taken.folder), "bundle")
        os.mkdir(finished, 0o700)
        os.rename(taken.folder, os.path.join(finished, TREE))
        bundle.check_tree(os.path.join(finished, TREE), offer.tree.digest)
        bundle.write_record(finished, offer.tree.digest, offer.facts)
        write_file(os.path.join(finished, SIGNED), taken.note.to_bytes())
        return os.path.basename(store.add(self._store, self._topic, finished, offer.tree.digest))


class Remotes:
    """The remotes that the settings name, for one topic. What goes wrong with one is a warning."""

    def __init__(self, where: Topic, among: Store) -> None:
        """Takes the topic, and the store of this machine."""
        self._wanted, self._remotes = _Bundles(where, among), take.ConfiguredRemotes()

    def fetch(self, seconds: float | None) -> bool:
        """Fetches what the first remote has that can be used; returns whether there is a new bundle in the store.

        If there is none, takes the claim to compile it, or waits at most so many seconds for a machine that has it.
        """
        if self._remotes.take(self._wanted)[0]:
            return True
        try:
            trust.read()
        except TrustFileError:  # `take` has warned of it: nothing that another machine publishes could be used
            return False
        identity = (COMPILED.name, self._wanted.topic)
        target = self._remotes.claim(self._wanted, identity, 0.0 if seconds is None else seconds)
        is_fetched = target is not None and self._remotes.take_of([target], self._wanted)[0]
        if is_fetched:
            self.end(True)
        return is_fetched

    def end(self, is_published: bool) -> None:
        """Lets those go on that wait for this machine."""
        self._remotes.end_claim(is_published)

    def publish(self, folder: str) -> None:
        """Publishes a bundle of the store to the remotes that take what is built here, and ends the claim.

        Without a folder nothing was compiled that could be published.
        """
        is_published = False
        try:
            for remote in self._remotes.asked(self._wanted, is_miss=True)[0] if folder else ():
                if remote.pushes:
                    is_published |= self._publish_to(remote, folder)
        finally:
            self.end(is_published)

    def _publish_to(self, remote: Remote, folder: str) -> bool:
        try:
            objects = open_store(remote.url, settings.offline())
            push(objects, remote, COMPILED, COMPILED.at(folder), keys.signer())
            return True
        except (*FAILURES, SettingError) as error:
            text = "%s: its compiled graphs were not published to %s: %s"
            log.warning(text, self._wanted.what, remote, error)
            remembered_answers.note_failure(remote, error)
            return False
