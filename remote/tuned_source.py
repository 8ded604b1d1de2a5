"""Fetches tuning results. `builders/lookup/tuned.py` imports it if a remote is asked."""

from __future__ import annotations

import os

from opforge.builders.lookup.tuned import WantedResult
from opforge.cache.current_store import current_store
from opforge.foundation.files import discard, make_folder, write_file

from . import reverification
from .offers import Offer
from .take import ConfiguredRemotes, Taken, UnfitError, Wanted
from .tuned_statements import TUNED


class _Result(Wanted):
    """A result for an op on this machine."""

    kind = TUNED

    def __init__(self, path: str, what: WantedResult) -> None:
        """Takes where the result is kept, and what it must be for."""
        super().__init__(f"the tuning result of {what.op}", what.description, current_store().layout)
        self._path, self._expected = path, what

    def rank(self, offer: Offer) -> int:
        """Returns 0: any for this machine is as good."""
        value, what = offer.facts, self._expected
        if (value["op"], value["target"], value["cores"]) != (what.op, what.target, what.cores):
            raise UnfitError(f"it is a result of {value['op']} for {offer.target}")
        return 0

    def place(self, taken: Taken) -> str:
        """Keeps the statement: it is all there is."""
        make_folder(os.path.dirname(self._path))
        write_file(self._path, taken.note.to_bytes())
        return taken.offer.label


def bring(path: str, what: WantedResult) -> bool:
    """Fetches the result that a remote has for an op on this machine; returns whether there is one now."""
    return ConfiguredRemotes().take(_Result(path, what))[0]


def problem(path: str, what: WantedResult) -> str:
    """Verifies a fetched result by the present trust file. Returns why it is not used now; empty if it is.

    The rule is that of `reverification`.
    """
    try:
        return reverification.problem(path, TUNED, what.description, f"{what.op}: a tuning result", lambda _offer: None)
    except OSError as error:
        return str(error)
    except ValueError as error:
        discard(path)
        return str(error)
