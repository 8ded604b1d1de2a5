"""Which signatures of a statement count: those of keys whose lists of withdrawals do not take it back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from opforge.errors import DamagedListError, SignatureError, StoreBehindError, WithdrawnError

from . import answers, clocks, withdrawals
from .offers import Offer
from .remotes import Remote
from .signatures import seen, trust
from .statements import Signed
from .stores.protocol import ObjectStore
from .topics import DAMAGED
from .tuf import roots
from .withdrawals import CHOOSING, LOADING, NOTHING, WHAT, Withdrawal, Withdrawals

if TYPE_CHECKING:
    from .tuf.client import Reader

GONE = "Use another version, or ask the holder of the key"
HINT = "The holder of the key renews the list with: opforge withdraw URL"


MAX_SECONDS = 60.0
"""After this time no further statement of a remote is tried."""
MAX_REASONS = 5
"""How many different reasons a message has."""


def counted(reasons: Sequence[str]) -> str:
    """Returns the different reasons, each with how often it is there: a remote may have many bad statements."""
    counts = Counter(reasons)
    texts = [reason if count == 1 else f"{reason} ({count} times)" for reason, count in counts.most_common(MAX_REASONS)]
    more = len(counts) - len(texts)
    return "; ".join([*texts, f"and {more} other reasons"] if more else texts)


class Accepted(NamedTuple):
    """A key whose signature counts, and what it has said of the statement since."""

    key: str
    withdrawal: Withdrawal = Withdrawal(NOTHING)

    @property
    def withdrawn(self) -> str:
        """Why the statement is not chosen any more; empty if it may be."""
        said = self.withdrawal
        return "" if said.stops == NOTHING else said.reason or f"the key {self.key} has withdrawn it"


class NotChosenError(ValueError):
    """Who signed a statement has withdrawn it, so that it is not chosen any more."""


def judge(
    item: Signed,
    what: str,
    parse: Callable[[bytes], Offer],
    trusted: trust.Trust | None,
    lists: Lists,
    is_required: bool = False,
) -> tuple[Offer, str]:
    """Returns what a statement offers, and the name of a key that signed it, may sign it, and stands by it.

    Nothing of it is parsed before a signature is verified. Without `trusted`, as for a remote with unsigned=1, no key
    is asked for, and the name is empty. `is_required` says whether a recent list of withdrawals is. Raises
    SignatureError, NotChosenError, StoreError, and what `parse` raises.
    """
    if trusted is None:
        return parse(item.data), ""
    signers = trusted.signers(what, item.data, item.signatures)
    offer = parse(item.data)
    signers = trust.allowed(signers, offer.subject, what)
    accepted = lists.accepted(what, offer.title, signers, is_required)
    if accepted.withdrawn:
        raise NotChosenError(f"the key {accepted.key} has withdrawn it: {accepted.withdrawn}")
    return offer, accepted.key


class Lists:
    """The lists of withdrawals of one store, each read once. Where this user trusts a root, TUF vouches for them."""

    def __init__(self, store: ObjectStore, remote: Remote, trusted: trust.Trust, is_fresh: bool) -> None:
        """Begins without a list; `is_fresh` uses none that was read before."""
        self._store, self._remote, self._trust, self._is_fresh = store, remote, trusted, is_fresh
        self._lists: dict[str, Withdrawals | None] = {}
        self._behind: dict[str, StoreBehindError] = {}
        self._reader: Reader | None = None
        self._place = ""
        self.new: list[Withdrawals] = []
        """Those that were read from the store, and not remembered."""

    @property
    def read(self) -> list[Withdrawals]:
        """Returns the lists that were read."""
        return [listed for listed in self._lists.values() if listed]

    def accepted(self, what: str, name: str, signers: Sequence[trust.TrustedKey], is_required: bool) -> Accepted:
        """Returns a signer that still stands by a statement, at best one that has not withdrawn it at all.

        `name` is what withdrawals call it; `is_required` says whether a recent list is. Raises SignatureError if
        nobody stands by it, WithdrawnError if somebody did, StoreBehindError if an older list than was seen is the
        reason, StoreError.
        """
        chosen, reasons, behind, is_withdrawn = list[Accepted](), list[str](), list[StoreBehindError](), False
        for signer in signers:
            try:
                listed = self.of(signer)
            except StoreBehindError as error:
                behind.append(error)
                continue
            problem = self._problem(signer, listed) if is_required else ""
            said = listed.of(name) if listed else Withdrawal(NOTHING)
            is_withdrawn |= said.stops == LOADING
            if problem or said.stops == LOADING:
                because = f": {said.reason}" if said.reason else ""
                reasons.append(problem or f"the key {signer.key.name} has withdrawn it{because}")
            else:
                chosen.append(Accepted(signer.key.name, said))
        if chosen:
            return min(chosen, key=lambda accepted: accepted.withdrawal.stops == CHOOSING)
        if behind and not reasons:
            raise StoreBehindError(what, "; ".join(error.reason for error in behind), HINT)
        text = "; ".join([*reasons, *(error.reason for error in behind)])
        raise WithdrawnError(what, text, GONE) if is_withdrawn else SignatureError(what, text, HINT)

    def _problem(self, signer: trust.TrustedKey, listed: Withdrawals | None) -> str:
        if listed is None:
            return f"there is no list of withdrawals of the key {signer.key.name}"
        now = time.time()
        problem = listed.age_problem(self._trust.withdrawal_days, now)
        if problem and listed.date > now:
            problem += f"; {clocks.explained(self._store, withdrawals.name_of(listed.key), listed.date, now)}"
        return problem

    def of(self, signer: trust.TrustedKey) -> Withdrawals | None:
        """Returns the list of a key; None if there is none. Raises StoreBehindError, SignatureError, StoreError."""
        name = signer.key.name
        if name in self._behind:
            raise self._behind[name]
        if name not in self._lists:
            try:
                self._lists[name] = self._asked(signer)
            except StoreBehindError as error:
                self._behind[name] = error
                raise
        return self._lists[name]

    def _asked(self, signer: trust.TrustedKey) -> Withdrawals | None:
        remembered = answers.withdrawn(self._remote, signer)
        is_used = remembered is not None and remembered.is_recent and not self._is_fresh
        if remembered and is_used and not self._problem_of(signer, remembered.listed, remembered.store):
            return remembered.listed
        self._open()
        listed = self._fetched(signer)
        problem = self._problem_of(signer, listed, self._place)
        before = remembered.listed.order if remembered and remembered.listed else 0
        if not problem and before > (listed.order if listed else 0):  # where no state can be kept
            problem = _older(listed, before)
        if problem:
            raise StoreBehindError(str(self._remote), f"{WHAT} of {signer.key.name} is not used: {problem}", HINT)
        answers.note_withdrawn(self._remote, signer, answers.Noted(listed, self._place))
        if listed is not None:
            self.new.append(listed)
        return listed

    def _problem_of(self, signer: trust.TrustedKey, listed: Withdrawals | None, place: str) -> str:
        """Returns why a list, or that there is none, must not be used: a newer one was seen. Keeps what is new."""
        if listed is not None:
            problem = seen.problem(place, signer.key, listed.seen, self._trust.requires_state, _shown)
        else:
            problem = seen.problem_of_none(place, signer.key, self._trust.requires_state, _shown)
        if problem or place == self._store.url:
            return problem
        # Before its root was trusted the store was known by its URL.
        known = seen.newest(self._store.url, signer.key).number
        return _older(listed, known) if known > (listed.seen.number if listed else 0) else ""

    def _open(self) -> None:
        """Learns what the store is known by, and how its lists are read."""
        if not self._place:
            root = required_root(self._store, self._remote, self._trust)
            self._place = roots.identity(self._store, root)
            if root is not None:
                from .tuf import client

                self._reader = client.reader(self._store, root)

    def _fetched(self, signer: trust.TrustedKey) -> Withdrawals | None:
        name = withdrawals.name_of(signer.key.name)
        if self._reader is not None:
            content = self._reader.content(withdrawals.path_of(signer.key.name))
        else:
            stored = self._store.get(name, withdrawals.MAX_BYTES)
            content = stored.data if stored else None
        try:
            return None if content is None else withdrawals.verified(content, signer)
        except ValueError as error:
            raise DamagedListError(str(self._remote), f"reading {name}", str(error), DAMAGED) from error


def required_root(store: ObjectStore, remote: Remote, trusted: trust.Trust) -> roots.Root | None:
    """Returns the root that this user trusts of a store; None without one.

    Raises SignatureError if the trust file requires one of it; TrustFileError, StoreError.
    """
    root = roots.of_store(store)
    if root is None and trusted.requires_root(store.url):
        hint = "Get its root metadata from its owner, and run: opforge tuf trust URL FILE"
        raise SignatureError(str(remote), f"{trusted.path} requires a root of it, and you trust none", hint)
    return root


def _shown(number: int) -> str:
    """Returns how messages name a list of withdrawals."""
    return f"the one of {time.strftime(withdrawals.DATE, time.gmtime(number))}"


def _older(listed: Withdrawals | None, known: int) -> str:
    return f"it is {_shown(listed.seen.number) if listed else 'gone'}, and {_shown(known)} was seen before"
