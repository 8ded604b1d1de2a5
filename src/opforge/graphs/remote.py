"""Bundles that travel: fetched if a key signed them that is trusted for `compiled:NAME`, and published as ops are.

A bundle holds pickles and machine code. So it is never taken from a remote with `unsigned=1`, and one that was fetched
is verified again at each use: a key may have been revoked since.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

from opforge import settings
from opforge.cache.records import fetched
from opforge.cache.store import Store
from opforge.errors import (
    ExtraNotInstalledError,
    PublishError,
    RemoteError,
    SettingError,
    SignatureError,
    TrustFileError,
)
from opforge.events import emit
from opforge.machine_folder import write_file
from opforge.remote import answers, blobs, kept, topics
from opforge.remote.accepted import MAX_SECONDS, Lists, NotChosenError, counted, judge
from opforge.remote.claims import Claim, name_of
from opforge.remote.publish import Blob, add_statement
from opforge.remote.remotes import Remote, configured
from opforge.remote.signatures import keys, trust
from opforge.remote.signatures.keys import Signer
from opforge.remote.statements import Signed, UnreadableStatement
from opforge.remote.stores import open_store
from opforge.remote.stores.protocol import ObjectStore

from . import bundle, store, topic
from . import statements as compiled_statements
from .bundle import SIGNED, TREE, Bundle, BundleError
from .statements import KIND, CompiledKind, Offer
from .topic import Topic

log = logging.getLogger("opforge")
FAILURES = (RemoteError, ExtraNotInstalledError, OSError)
MAX_OFFERS = 8
"""How many bundles of one key a topic holds; a newer one takes the place of the oldest."""
MIRROR = "To copy it with its signatures: opforge mirror FROM TO"
UNSIGNED = "unsigned=1 is not enough for compiled graphs, which hold pickles: sign them"


class _Candidate(NamedTuple):
    offer: Offer
    item: Signed
    signer: str
    stamp: tuple[int, ...]
    """The trust file's, from before it was read."""


def kept_problem(path: str, read: Bundle, where: Topic) -> str:
    """Returns why a fetched bundle must not be used now; empty if it may. `path` is what is kept of its statement.

    The rule is that of `remote/kept.py`. Raises OSError if it cannot be read, BundleError if it is damaged: nothing
    makes it usable again.
    """

    def parse(data: bytes) -> Offer:
        offer = compiled_statements.parse(data, where)
        if offer.tree.digest != read.digest or offer.facts != read.facts:
            raise BundleError(f"{bundle.RECORD} says other than what was signed")
        return offer

    try:
        note, stamp = fetched.read(path), fetched.trust_stamp()  # before it is read: it may change meanwhile
        by = kept.trusted(where.name)
    except (RemoteError, ExtraNotInstalledError) as error:
        return str(error)
    except ValueError as error:
        raise BundleError(f"its {SIGNED} cannot be used: {error}") from error
    try:
        kept.verify(path, note, by, stamp, f"{where.name}: a bundle", parse)
    except OSError as error:  # it is verified, and will be again: a store may be one to read alone
        log.debug("%s cannot be written: %s", path, error)
    except SignatureError as error:
        return error.reason
    except (RemoteError, ExtraNotInstalledError) as error:
        return str(error)
    except ValueError as error:
        raise BundleError(str(error)) from error
    return ""


class Remotes:
    """The remotes that the settings name, for one topic. What goes wrong with one is a warning."""

    def __init__(self, where: Topic, among: Store) -> None:
        """Takes those that may be asked now."""
        self._topic, self._store = where, among
        self._claim: Claim | None = None
        self._remotes = [remote for remote in configured() if not self._reason(remote)]

    def _reason(self, remote: Remote) -> str:
        reason = answers.not_asked(remote, UNSIGNED)
        if reason:
            log.info("%s: %s is not asked: %s", self._topic.name, remote, reason)
        return reason

    def fetch(self, seconds: float | None) -> bool:
        """Fetches what the first remote has that can be used; returns whether there is a new bundle in the store.

        If there is none, takes the claim to compile it, or waits at most so many seconds for a machine that has it.
        """
        try:
            trust.read()
        except TrustFileError as error:  # of no remote
            log.warning("%s: nothing is fetched: %s", self._topic.name, error)
            return False
        if any(self._fetch(remote) for remote in self._remotes):
            return True
        target = self._target()
        if target is None:
            return False
        label = f"the compiled graphs of {self._topic.name}"
        try:
            claim = Claim(open_store(target.url, settings.offline()), name_of(KIND, self._topic))
            self._claim = claim.wait(label, 0.0 if seconds is None else seconds)
        except FAILURES as error:
            self._failed(target, "they may be compiled on other machines too", error)
            return False
        is_fetched = self._fetch(target)  # another machine may have published it meanwhile
        if is_fetched:
            self.end(True)
        return is_fetched

    def _target(self) -> Remote | None:
        """Returns the first remote that what is compiled here is published to."""
        for remote in self._remotes:
            if remote.pushes:
                try:
                    keys.signer()
                except (RemoteError, SettingError) as error:
                    log.debug("nothing is claimed: %s", error)
                    return None
                return remote
        return None

    def end(self, is_published: bool) -> None:
        """Lets those go on that wait for this machine."""
        claim, self._claim = self._claim, None
        if claim:
            claim.end(is_published)

    def _failed(self, remote: Remote, what: str, error: Exception) -> None:
        log.warning("%s: %s: %s", self._topic.name, what, error)
        answers.note_failure(remote, error)

    # -- fetching ------------------------------------------------------------------------------------------------------

    def _fetch(self, remote: Remote) -> bool:
        try:
            objects = open_store(remote.url, settings.offline())
            taken, end = 0, time.monotonic() + MAX_SECONDS
            for candidate in self._candidates(objects, remote):
                try:
                    self._take(objects, remote, candidate)
                    taken += 1
                except ValueError as error:  # of a blob or a bundle
                    text = "%s: the bundle %s of %s is not used: %s"
                    log.warning(text, self._topic.name, candidate.offer.label, remote, error)
                if taken == store.MAX_BUNDLES or time.monotonic() > end:
                    break
            return taken > 0
        except FAILURES as error:
            self._failed(remote, f"no compiled graphs were fetched from {remote}", error)
            return False

    def _candidates(self, objects: ObjectStore, remote: Remote) -> list[_Candidate]:
        """Returns what a remote offers that can be used here, the newest first. Raises RemoteError."""
        items = topics.read_items(objects, topics.name_of(KIND, str(self._topic)), str(remote))
        if not items:
            return []
        stamp, trusted = fetched.trust_stamp(), trust.read()
        lists, candidates = Lists(objects, remote, trusted, False), list[_Candidate]()
        refused, unfit, text = list[SignatureError](), list[str](), "%s: compiled graphs of %s are not used: %s"
        for item in items:
            try:
                candidates.append(self._judged(item, trusted, lists, stamp))
            except SignatureError as error:
                refused.append(error)
            except (UnreadableStatement, NotChosenError) as error:
                unfit.append(str(error))
        if refused:
            reasons = counted([error.reason for error in refused])
            log.warning(text, self._topic.name, remote, SignatureError(refused[0].what, reasons, refused[0].hint))
        if unfit:
            log.info(text, self._topic.name, remote, counted(unfit))
        for listed in lists.new:
            kept.drop_withdrawn(self._store.layout, listed)
        return sorted(candidates, key=lambda candidate: -candidate.offer.facts["made"])

    def _judged(self, item: Signed, trusted: trust.Trust, lists: Lists, stamp: tuple[int, ...]) -> _Candidate:
        """Returns a bundle that may be used. Raises SignatureError, UnreadableStatement, NotChosenError, StoreError."""

        def parse(data: bytes) -> Offer:
            offer = compiled_statements.parse(data, self._topic)
            if problem := topic.lacking(offer.facts["features"]):
                raise UnreadableStatement(problem)
            return offer

        what = f"{self._topic.name}: a bundle"
        offer, signer = judge(item, what, parse, trusted, lists, CompiledKind.needs_withdrawals)
        return _Candidate(offer, item, signer, stamp)

    def _take(self, objects: ObjectStore, remote: Remote, candidate: _Candidate) -> None:
        """Fetches a bundle into the store. Raises ValueError for other files than its statement's, RemoteError."""
        offer = candidate.offer
        staged = store.new_folder(self._store, self._topic)
        try:
            finished = os.path.join(staged, "bundle")
            os.mkdir(finished, 0o700)
            blobs.fetch(objects, offer.tree, staged, os.path.join("bundle", TREE))
            bundle.check_tree(os.path.join(finished, TREE), offer.tree.digest)
            bundle.write_record(finished, offer.tree.digest, offer.facts)
            note = kept.note_of(remote, candidate.item, candidate.signer, candidate.stamp)
            write_file(os.path.join(finished, SIGNED), note.to_bytes())
            folder = store.add(self._store, self._topic, finished, offer.tree.digest)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        fields = {"bytes": offer.tree.blob.size, "path": str(remote), "result": os.path.basename(folder)}
        emit("fetch", op=self._topic.name, **fields)

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(self, folder: str) -> None:
        """Publishes a bundle of the store to the remotes that take what is built here, and ends the claim.

        Without a folder nothing was compiled that could be published.
        """
        is_published = False
        try:
            for remote in self._remotes if folder else ():
                if remote.pushes:
                    is_published |= self._publish_to(remote, folder)
        finally:
            self.end(is_published)

    def _publish_to(self, remote: Remote, folder: str) -> bool:
        try:
            objects = open_store(remote.url, settings.offline())
            push(objects, remote, folder, self._topic, keys.signer())
            return True
        except (*FAILURES, SettingError) as error:
            self._failed(remote, f"its compiled graphs were not published to {remote}", error)
            return False


def push(objects: ObjectStore, remote: Remote, folder: str, where: Topic, signer: Signer) -> None:
    """Publishes the bundle in a folder: the blob first, then the topic by compare-and-swap.

    Raises PublishError, StoreError, ExtraNotInstalledError, OSError.
    """
    what = f"{where.name} {os.path.basename(folder)}"
    if bundle.is_fetched(folder):
        raise PublishError(what, str(remote), "another has signed it: publish what was compiled here", MIRROR)
    try:
        record = bundle.read_record(folder)
        tree_folder = os.path.join(folder, TREE)
        bundle.check_tree(tree_folder, record["tree"])
        paths = bundle.paths_in(tree_folder)
        with tempfile.TemporaryFile() as file:
            tree, _hashes = blobs.pack(tree_folder, paths, file)
            if tree.digest != record["tree"]:
                raise BundleError("its files are not those that its digest names")
            stated = compiled_statements.statement(where, record["facts"], tree)
            add_statement(objects, stated, signer, merged, what, str(remote), Blob(tree, file))
    except ValueError as error:
        raise PublishError(what, str(remote), str(error), "Nothing was published") from error
    emit("push", op=where.name, bytes=tree.blob.size, path=str(remote), result=os.path.basename(folder))


def merged(before: Sequence[Signed], item: Signed) -> list[Signed]:
    """Returns statements with a new one, and without those of its key that it makes needless.

    These are bundles whose parts it all has, and the oldest beyond MAX_OFFERS. Those of other keys stay, and so does
    what cannot be read here.
    """
    new = compiled_statements.parse(item.data)
    others, mine = list[Signed](), list[tuple[int, Signed]]()
    for each in before:
        try:
            offer = compiled_statements.parse(each.data)
        except UnreadableStatement:
            others.append(each)
            continue
        if each.signers != item.signers:
            others.append(each)
        elif each.data == item.data or offer.tree.digest == new.tree.digest:
            return list(before)
        elif not {*offer.facts["parts"]} <= {*new.facts["parts"]}:
            mine.append((offer.facts["made"], each))
    kept = [each for _made, each in sorted(mine, key=lambda one: -one[0])[: MAX_OFFERS - 1]]
    return [each for each in before if each in others or each in kept] + [item]
