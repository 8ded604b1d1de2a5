"""Judges whole statements: who has signed one, whether those keys may sign it, and whether a list withdraws it.

A statement is accepted if a trusted key has signed it whose list does not withdraw it, and names it if it is a release.
Which keys count, and for which names, is decided by the trust file: `signatures/trust_file.py`.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from opforge.errors import DamagedListError, SignatureError, StoreBehindError, WithdrawnError

from . import clocks, remembered_answers, withdrawal_lists
from .kinds import Kind
from .remotes import Remote
from .signatures import seen, trust_file
from .signatures.signing import Named
from .statements import Signed
from .stores.protocol import ObjectStore
from .topics import DAMAGED
from .withdrawal_lists import CHOOSING, LOADING, NOTHING, WHAT, Withdrawal, Withdrawals

GONE = "Use another version, or ask the holder of the key"
HINT = "The holder of the key renews the list with: opforge withdraw URL"
UNNAMED = "The holder of the key publishes it again, which adds it to the list: opforge publish"


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


class AcceptedKey(NamedTuple):
    """A key whose signature counts, and what it has said of the statement since."""

    key: str
    withdrawal: Withdrawal = Withdrawal(NOTHING)

    @property
    def withdrawn(self) -> str:
        """Why the statement is not chosen any more; empty if it may be."""
        said = self.withdrawal
        return "" if said.stops == NOTHING else said.reason or f"the key {self.key} has withdrawn it"


class Titled(Protocol):
    """The parsed content of a statement: an offer, or a release."""

    @property
    def subject(self) -> str:
        """The scope that a key must be trusted for: KIND:NAME."""

    @property
    def title(self) -> str:
        """Its title in withdrawals, with its kind."""


Stated = TypeVar("Stated", bound=Titled)


def judge(
    item: Signed,
    what: str,
    kind: Kind,
    trusted: trust_file.Trust | None,
    lists: Lists,
    parse: Callable[[bytes], Stated],
) -> tuple[Stated, AcceptedKey]:
    """Returns what a statement offers, and a key that signed it, may sign it, and has not withdrawn it from use.

    Nothing of it is parsed before a signature is verified. Without `trusted`, as for a remote with unsigned=1, no key
    is asked for, and the name of the key is empty. Raises SignatureError, StoreError, and what `parse` raises.
    """
    if trusted is None:
        return parse(item.data), AcceptedKey("")
    signers = trusted.signers(what, item.data, item.signatures)
    stated = parse(item.data)
    signers = trust_file.allowed(signers, stated.subject, what)
    digest = item.digest if kind.is_released else ""
    return stated, lists.accepted(what, stated.title, signers, kind.needs_withdrawals, digest)


class Lists:
    """The lists of the keys in one store, each read once. One that is damaged, or behind, stops no other key."""

    def __init__(self, store: ObjectStore, remote: Remote, trusted: trust_file.Trust, is_fresh: bool) -> None:
        """Begins without a list; `is_fresh` uses none that was read before."""
        self._store, self._remote, self._trust, self._is_fresh = store, remote, trusted, is_fresh
        self._lists: dict[Named, Withdrawals | None] = {}
        self._refused: dict[Named, StoreBehindError | DamagedListError] = {}
        self.new: list[Withdrawals] = []
        """The lists that were read from the store, and not remembered."""

    @property
    def read(self) -> list[Withdrawals]:
        """Returns the lists that were read."""
        return [listed for listed in self._lists.values() if listed]

    def accepted(
        self, what: str, name: str, signers: Sequence[trust_file.TrustedKey], is_required: bool, digest: str = ""
    ) -> AcceptedKey:
        """Returns a signer that still stands by a statement, at best one that has not withdrawn it at all.

        `name` is what withdrawals call it; `is_required` says whether a list is. With `digest` only a signer counts
        whose list names a statement of this digest by that name. Raises SignatureError if nobody stands by it,
        WithdrawnError if somebody did, StoreBehindError if an older list than was seen is the reason, StoreError.
        """
        chosen, reasons, is_withdrawn = list[AcceptedKey](), list[str](), False
        refused = list[StoreBehindError | DamagedListError]()
        for signer in signers:
            try:
                listed = self.of(signer)
            except (StoreBehindError, DamagedListError) as error:  # of this key alone
                refused.append(error)
                continue
            problem = self._problem(signer, listed, is_required or bool(digest))
            said = listed.of(name) if listed else Withdrawal(NOTHING)
            is_withdrawn |= said.stops == LOADING
            if listed and digest and listed.released_as(name) != digest:
                problem = f"the list of the key {signer.key.name} does not name it"
            if problem or said.stops == LOADING:
                because = f": {said.reason}" if said.reason else ""
                reasons.append(problem or f"the key {signer.key.name} has withdrawn it{because}")
            else:
                chosen.append(AcceptedKey(signer.key.name, said))
        if chosen:
            return min(chosen, key=lambda accepted: accepted.withdrawal.stops == CHOOSING)
        text = "; ".join([*reasons, *(error.reason for error in refused)])
        if refused and not reasons and all(isinstance(error, StoreBehindError) for error in refused):
            raise StoreBehindError(what, text, HINT)
        if is_withdrawn:
            raise WithdrawnError(what, text, GONE)
        raise SignatureError(what, text, DAMAGED if refused and not reasons else UNNAMED if digest else HINT)

    def released(self, subject: str) -> tuple[dict[str, list[str]], list[str]]:
        """Returns the digests of a subject, as package:ORG/NAME, in the lists of the keys that may sign it, by label.

        Returns also why lists are not used, which stops no other key. Raises StoreBehindError if no list names the
        subject, and the store has an older list of one of the keys than was seen; StoreError.
        """
        digests, problems, now = dict[str, list[str]](), list[str](), time.time()
        behind: StoreBehindError | None = None
        for key in self._trust.keys:
            if key.problem(now) or not key.may_sign(subject):
                continue
            try:
                listed = self.of(key)
            except (StoreBehindError, DamagedListError) as error:  # of this key alone
                behind = error if isinstance(error, StoreBehindError) else behind
                problems.append(error.reason)
                continue
            for label, digest in listed.released.get(subject, {}).items() if listed else ():
                digests.setdefault(label, []).append(digest)
        if behind and not digests:
            raise behind
        return digests, problems

    def _problem(self, signer: trust_file.TrustedKey, listed: Withdrawals | None, is_required: bool) -> str:
        if listed is None:
            return f"there is no list of withdrawals of the key {signer.key.name}" if is_required else ""
        now = time.time()
        problem = listed.age_problem(self._trust.withdrawal_days, now)
        if problem and listed.date > now:
            problem += f"; {clocks.explained(self._store, withdrawal_lists.name_of(listed.key), listed.date, now)}"
        return problem

    def of(self, signer: trust_file.TrustedKey) -> Withdrawals | None:
        """Returns the list of a key; None if there is none. Raises StoreBehindError, DamagedListError, StoreError."""
        key = signer.key
        if key in self._refused:
            raise self._refused[key]
        if key not in self._lists:
            try:
                self._lists[key] = self._asked(signer)
            except (StoreBehindError, DamagedListError) as error:
                self._refused[key] = error
                raise
        return self._lists[key]

    def _asked(self, signer: trust_file.TrustedKey) -> Withdrawals | None:
        remembered = remembered_answers.withdrawn(self._remote, signer)
        is_used = remembered is not None and remembered.is_recent and not self._is_fresh
        if remembered and is_used and not self._seen_problem(signer, remembered.listed):
            return remembered.listed
        listed, content = self._fetched(signer)
        problem = self._seen_problem(signer, listed)
        if not problem and remembered and remembered.listed:  # where no state can be kept
            problem = _lost_since(remembered.listed, listed)
        if problem:
            raise StoreBehindError(str(self._remote), f"{WHAT} of {signer.key.name} is not used: {problem}", HINT)
        remembered_answers.note_withdrawn(self._remote, signer, content)
        if listed is not None:
            self.new.append(listed)
        return listed

    def _seen_problem(self, signer: trust_file.TrustedKey, listed: Withdrawals | None) -> str:
        """Returns why a list, or that there is none, must not be used: a newer one was seen. Keeps what is new.

        A copy of a store has the same list: what was seen of it counts by whichever URL it was read.
        """
        must_know, url = self._trust.requires_state, self._store.url
        if listed is None:
            return seen.problem_of_none(url, signer.key, must_know, _shown)
        if problem := seen.problem(f"list:{listed.id}", signer.key, listed.seen, must_know, _shown):
            return problem
        stated = listed.seen._replace(said=_said(listed))
        return seen.problem(url, signer.key, stated, must_know, _shown, functools.partial(_lacking, listed))

    def _fetched(self, signer: trust_file.TrustedKey) -> tuple[Withdrawals | None, bytes]:
        """Returns the list of a key, and the file that holds it."""
        name = withdrawal_lists.name_of(signer.key.name)
        stored = self._store.get(name, withdrawal_lists.MAX_BYTES)
        try:
            return (withdrawal_lists.verified(stored.data, signer), stored.data) if stored else (None, b"")
        except ValueError as error:
            raise DamagedListError(str(self._remote), f"reading {name}", str(error), DAMAGED) from error


def _lost_since(known: Withdrawals, listed: Withdrawals | None) -> str:
    """Returns why a list must not take the place of one that was read before, or an empty text."""
    if listed is None or listed.order < known.order:
        there = _shown(listed.order) if listed else "gone"
        return f"it is {there}, and {_shown(known.order)} was seen before"
    return _lacking(listed, _said(known))


def _said(listed: Withdrawals) -> dict[str, Any]:
    """Returns the record of a list, by which a list of another store is judged: it must have all of it."""
    dates = {name: said.date for name, said in listed.withdrawn.items()}
    released = {subject: dict(labels) for subject, labels in listed.released.items()}
    return {"id": listed.id, "withdrawn": dates, "released": released}


def _lacking(listed: Withdrawals, known: Mapping[str, Any]) -> str:
    """Returns why a list must not take the place of one that said this: it is of another store, and lacks some of it.

    A key may publish to several stores, each with a list of its own.
    """
    withdrawn = {name: Withdrawal(LOADING, date=date) for name, date in known["withdrawn"].items()}
    before = Withdrawals(listed.key, 0.0, withdrawn, id=known["id"], released=known["released"])
    if listed.id != before.id and listed.lacks(before):
        return "it is not the list seen before, and lacks entries of it"
    return ""


def _shown(number: int) -> str:
    """Returns how messages name a list of withdrawals."""
    return f"the one of {time.strftime(withdrawal_lists.DATE, time.gmtime(number))}"
