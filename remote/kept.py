"""What was fetched and is kept on this machine: may it still be used? One rule, whatever the kind.

- After a change of the trust file what was fetched is verified again, before it is used.
- If the trust file is damaged, what was accepted before is used, and nothing else: it is verified once it is corrected.
- If the trust file no longer accepts it, or others could have changed that file, it is not used, and stays where it is:
  a key may be missing for a minute, and is asked again after the next change.
- What its signer has withdrawn from use is removed, as soon as that list is read.
- What is not what was signed is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from opforge.cache.layout import Layout
from opforge.cache.records import fetched
from opforge.cache.records.fetched import Fetched
from opforge.errors import TrustFileError
from opforge.machine_folder import write_file

from . import kinds, statements
from .accepted import AnyOffer
from .kind_table import KINDS
from .remotes import Remote
from .signatures import trust
from .signatures.trust import Trust
from .statements import Signed
from .withdrawals import LOADING, Withdrawals

log = logging.getLogger("opforge")


def note_of(remote: Remote, item: Signed, signer: str, stamp: tuple[int, ...]) -> Fetched:
    """Returns what is kept of a statement. `stamp` is the trust file's, from before it was read."""
    return Fetched(str(remote), item.data.decode("ascii"), tuple(map(str, item.signatures)), signer, stamp)


def item_of(note: Fetched) -> Signed:
    """Returns the statement of what was fetched. Raises ValueError if it is damaged."""
    return Signed(note.offer.encode("ascii"), statements.read_signatures(note.signatures))


def trusted(what: str) -> Trust | None:
    """Returns what the trust file says; None if it is damaged, which is one warning.

    Raises TrustFileError if others could have changed it.
    """
    path, data = trust.content()
    try:
        return trust.parse(path, data)
    except TrustFileError as error:
        log.warning("%s: what was fetched before is used, and nothing else: %s", what, error)
        return None


def accepted(
    by: Trust | None, what: str, item: Signed, signer: str, parse: Callable[[bytes], AnyOffer]
) -> tuple[AnyOffer, str]:
    """Returns what a kept statement offers, and the name of the key that is accepted for it now.

    `by` is what `trusted` has returned, `signer` the key that was accepted before: it stays, if it may. Raises
    SignatureError, and what `parse` raises.
    """
    if by is None:
        return parse(item.data), signer
    signers = by.signers(what, item.data, item.signatures)
    offer = parse(item.data)
    names = [each.key.name for each in trust.allowed(signers, offer.subject, what)]
    return offer, signer if signer in names else names[0]


def verify_note(path: str, what: str, parse: Callable[[bytes], AnyOffer]) -> AnyOffer:
    """Verifies the statement that is kept in a file, and notes that; returns what it offers.

    Raises OSError, ValueError if it is damaged, SignatureError or TrustFileError if it must not be used now, and what
    `parse` raises.
    """
    note, stamp = fetched.read(path), fetched.trust_stamp()  # before it is read: it may change meanwhile
    offer, signer = accepted(trusted(what), what, item_of(note), note.signer, parse)
    write_file(path, note._replace(signer=signer, trust=stamp).to_bytes())
    return offer


def drop_withdrawn(layout: Layout, listed: Withdrawals) -> None:
    """Removes from a store what was fetched by statements that a key has withdrawn from use since."""
    withdrawn = {name: said.reason for name, said in listed.withdrawn.items() if said.stops == LOADING}
    for name in sorted({name.partition(":")[0] for name in withdrawn} & KINDS.keys()):
        kind = kinds.of(name)
        for one in kind.kept(layout) if kind else ():
            if one.name not in withdrawn:
                continue
            signers = one.signers()
            if signers is None or listed.key in signers:
                one.drop()
                reason = withdrawn[one.name] or "it gave no reason"
                text = "The fetched %s was withdrawn by the key %s and is not used: %s"
                log.warning(text, one.shown, listed.key, reason)
