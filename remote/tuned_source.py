"""Fetches tuning results: signature, statement, fit. `builders/lookup/tuned.py` imports it if a remote is asked."""

from __future__ import annotations

import os
from functools import partial

from opforge.builders.lookup.tuned import Wanted
from opforge.cache.current import current_store
from opforge.errors import ExtraNotInstalledError, RemoteError, SignatureError
from opforge.machine_folder import make_folder, write_file

from . import first, kept, kinds, tuned_statements
from .accepted import Lists, judge
from .first import Asked
from .signatures import trust
from .statements import Signed
from .tuned_statements import ResultOffer, TunedKind


def bring(path: str, what: Wanted) -> bool:
    """Fetches the first result that a remote has for an op on this machine; returns whether there is one now.

    What cannot be used costs a warning for each remote.
    """

    def taken(asked: Asked, item: Signed) -> bool:
        offer, signer = _judged(item, what, asked.trusted, asked.lists)
        value = offer.value
        if (value["op"], value["target"], value["cores"]) != (what.op, what.target, what.cores):
            return False
        make_folder(os.path.dirname(path))
        write_file(path, asked.note(item, signer).to_bytes())
        return True

    return first.take(
        f"the tuning result of {what.op}", tuned_statements.topic_of(what.description), current_store().layout, taken
    )


def _judged(item: Signed, what: Wanted, trusted: trust.Trust | None, lists: Lists) -> tuple[ResultOffer, str]:
    """Returns what a statement offers, and the key that signed it. Raises SignatureError, ValueError, StoreError."""
    parse = partial(_parse, what)
    return judge(item, f"{what.op}: a tuning result", parse, trusted, lists, TunedKind.needs_withdrawals)


def _parse(what: Wanted, data: bytes) -> ResultOffer:
    return ResultOffer(tuned_statements.parse(data, what.description))


def verify_again(path: str, what: Wanted) -> str:
    """Verifies what was fetched with the trust file as it is now; returns why it is not used now, or "".

    The rule is that of `kept`.
    """
    try:
        kept.verify_note(path, f"{what.op}: a tuning result", partial(_parse, what))
    except SignatureError as error:
        return error.reason
    except (RemoteError, ExtraNotInstalledError, OSError) as error:
        return str(error)
    except ValueError as error:
        kinds.drop(path)
        return str(error)
    return ""
