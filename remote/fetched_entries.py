"""Entries of ops that were fetched before: are they still accepted by the trust file?"""

from __future__ import annotations

import logging
import os
from functools import partial

from opforge.builders.lookup.remotes import Request
from opforge.cache.layout import Layout
from opforge.cache.records import fetched_offer
from opforge.cache.store import Rejected
from opforge.errors import ExtraNotInstalledError, SignatureError
from opforge.foundation.files import discard, folder_names, is_temp_name

from . import reverification
from .offers import Offer
from .op_statements import OP

log = logging.getLogger("opforge")


def names(layout: Layout, description: str) -> list[str]:
    """Returns the names of the entries that were fetched for a description, and of none that is being written."""
    return [name for name in folder_names(layout.fetched(description)) if not is_temp_name(name)]


def usable(request: Request) -> tuple[bool, tuple[Rejected, ...]]:
    """Verifies the entries that were fetched for a request by the present trust file. Returns whether one may be used.

    The rule is that of `reverification`. What is not accepted now is not found, and returned with the reason. Raises
    TrustFileError if others could have changed the trust file.
    """
    layout, is_accepted, by, is_read = request.store.layout, False, None, False
    rejected = list[Rejected]()
    folder = layout.fetched(request.description)
    for name in names(layout, request.description):
        path = os.path.join(folder, name)
        try:
            note = fetched_offer.read(path)
            if note.problem(request.store.disk) is None:
                continue
            stamp = fetched_offer.trust_stamp(request.store.disk)  # before it is read: it may change meanwhile
            if not is_read:
                by, is_read = reverification.trusted(request.op), True
            parse = partial(_parse, request, name)
            reverification.verify_again(path, note, by, stamp, name, parse)
            is_accepted = True
        except SignatureError as error:
            rejected.append(Rejected(layout.entry(name), error.reason))
            log.warning("%s: an entry that was fetched before is not used now: %s", request.op, error)
        except FileNotFoundError:
            continue  # another process has removed it
        except ExtraNotInstalledError as error:
            rejected.append(Rejected(layout.entry(name), str(error)))
        except OSError as error:  # such as a full disk
            rejected.append(Rejected(layout.entry(name), f"{path}: {error.strerror}"))
        except ValueError as error:
            discard(path)
            log.warning("%s: %s is damaged, and what it was fetched for is not used: %s", request.op, path, error)
    return is_accepted, tuple(rejected)


def _parse(request: Request, name: str, data: bytes) -> Offer:
    """Returns the offer in the statement of a fetched entry. Raises UnreadableStatement, ValueError for another's."""
    offer = OP.parse(data, request.description)
    if (offer.label, offer.name) != (name, request.op):
        raise ValueError("its statement is of another entry")
    return offer
