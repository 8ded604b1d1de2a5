"""Verifies fetched artifacts again before they are used. The rule is the same for every kind.

A check is due if the trust file's stamp differs from the one in the artifact's record: see
`cache/records/fetched_offer.py`. `fetched_entries.py` makes it for the entries of ops; tuning results and pages of JITs
ask `problem`.

- After a change of the trust file, every fetched artifact is verified again before its next use.
- If the trust file is damaged, only artifacts that were accepted at their last verification are used. They are verified
  again once that file is corrected.
- If the trust file no longer accepts an artifact, or others could have changed that file, the artifact is not used, but
  kept: the key may be missing for a minute only, and the next change is another try. The refusal is recorded beside it.
- An artifact that its signer has withdrawn from use is removed as soon as the list of withdrawals is read.
- An artifact that differs from the signed one is removed.

Installed packages are verified by `packages/registry/verify_installed.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from opforge.cache.layout import Layout
from opforge.cache.records import fetched_offer
from opforge.cache.records.fetched_offer import FetchedOffer
from opforge.errors import ExtraNotInstalledError, RemoteError, SignatureError, TrustFileError
from opforge.foundation.files import write_file

from . import kinds, statements
from .kind_table import KINDS
from .kinds import Kind
from .offers import Offer
from .remotes import Remote
from .signatures import trust_file
from .signatures.trust_file import Trust
from .statements import Signed
from .withdrawal_lists import LOADING, Withdrawals

log = logging.getLogger("opforge")
REFUSED = "the trust file did not accept it when it was verified last, and is damaged now"


def note_of(remote: Remote, item: Signed, signer: str, stamp: tuple[int, ...]) -> FetchedOffer:
    """Returns the record of a fetched statement. `stamp` is the trust file's, from before it was read."""
    return FetchedOffer(str(remote), item.data.decode("ascii"), tuple(map(str, item.signatures)), signer, stamp)


def item_of(note: FetchedOffer) -> Signed:
    """Returns the statement of what was fetched. Raises ValueError if it is damaged."""
    return Signed(note.offer.encode("ascii"), statements.read_signatures(note.signatures))


def trusted(what: str) -> Trust | None:
    """Returns the trust file's content; None after a warning if the file is damaged.

    Raises TrustFileError if others could have changed it.
    """
    path, data = trust_file.content()
    try:
        return trust_file.parse(path, data)
    except TrustFileError as error:
        log.warning("%s: only artifacts that were fetched before are used: %s", what, error)
        return None


def verify_again(
    path: str, note: FetchedOffer, by: Trust | None, stamp: tuple[int, ...], what: str, parse: Callable[[bytes], Offer]
) -> Offer:
    """Verifies the statement that is kept in a file, and notes there whether it is accepted; returns what it offers.

    `by` is what `trusted` has returned, `stamp` the trust file's from before. The key that was accepted before stays,
    if it may. Raises ValueError if it is damaged, SignatureError if it must not be used now, and what `parse` raises.
    """
    item, signer = item_of(note), note.signer
    if by is None:
        if note.is_refused:
            raise SignatureError(what, REFUSED, "Correct the trust file")
        offer = parse(item.data)
    else:
        try:
            signers = by.signers(what, item.data, item.signatures)
            offer = parse(item.data)
            names = [each.key.name for each in trust_file.allowed(signers, offer.subject, what)]
        except SignatureError:
            _keep(path, note, note.refused())
            raise
        signer = signer if signer in names else names[0]
    _keep(path, note, note._replace(signer=signer, trust=stamp))
    return offer


def _keep(path: str, note: FetchedOffer, new: FetchedOffer) -> None:
    """Writes a changed record. If it cannot be written, as in a read-only store, the next use verifies it again."""
    if new != note:
        try:
            write_file(path, new.to_bytes())
        except OSError as error:
            log.debug("%s cannot be written: %s", path, error)


def problem(path: str, kind: Kind, topic: str, what: str, expected: Callable[[Offer], object]) -> str:
    """Returns why what was fetched must not be used now; empty if it may. `path` is what is kept of its statement.

    `expected` raises ValueError for an offer of something else. Raises OSError if it cannot be read, and ValueError if
    it is damaged: nothing makes it usable again.
    """

    def parse(data: bytes) -> Offer:
        offer = kind.parse(data, topic)
        expected(offer)
        return offer

    try:
        note, stamp = (
            fetched_offer.read(path),
            fetched_offer.trust_stamp(),
        )  # before it is read: it may change meanwhile
        verify_again(path, note, trusted(what), stamp, what, parse)
    except SignatureError as error:
        return error.reason
    except (RemoteError, ExtraNotInstalledError) as error:
        return str(error)
    return ""


def drop_withdrawn(layout: Layout, listed: Withdrawals) -> None:
    """Removes from a store what was fetched by statements that a key has withdrawn from use since.

    Artifacts that lie elsewhere are marked: see `Kind.note_withdrawals`.
    """
    withdrawn = {name: said.reason for name, said in listed.withdrawn.items() if said.stops == LOADING}
    for name in sorted({name.partition(":")[0] for name in listed.withdrawn} & KINDS.keys()):
        kind = kinds.of(name)
        assert kind is not None  # its name is in the table
        kind.note_withdrawals(listed)
        for one in kind.kept(layout):
            title = kind.title(one.name, one.label)
            if title in withdrawn and _may_withdraw(listed.key, one.note):
                outcome = "is not used"
                try:
                    kind.drop(one)
                except OSError as error:  # such as a store that is mounted read-only
                    outcome = f"must not be used, and cannot be removed ({error.strerror}); remove {one.path}"
                reason = withdrawn[title] or "it gave no reason"
                log.warning("The fetched %s was withdrawn by the key %s and %s: %s", title, listed.key, outcome, reason)


def _may_withdraw(key: str, path: str) -> bool:
    """Returns whether something was accepted by a key; if that cannot be read, anyone's withdrawal counts."""
    try:
        return fetched_offer.read(path).signer == key
    except (OSError, ValueError):
        return True
