"""A third kind of artifacts, for tests alone: a text. What a new kind needs is this file, and a line in a table."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from opforge.remote import blobs, statements, topics, withdrawal_lists
from opforge.remote.kind_table import KINDS, KindRow
from opforge.remote.kinds import Kind
from opforge.remote.offers import BY_LABEL, Offer
from opforge.remote.removals import Uploads
from opforge.remote.statements import Statement
from opforge.remote.topics import ListedStatement

NAME = "note"


class NoteKind(Kind):
    """Texts: their topic is their title, and its labels are numbers."""

    name, noun, is_inline, needs_withdrawals, merge = NAME, "note", False, False, BY_LABEL

    def offer(self, stated: Statement) -> Offer:
        """Returns the title, the number, and the language."""
        number, language = str(stated.facts["number"]), str(stated.facts["language"])
        return self.offered(stated.topic, number, language, stated.facts, stated.trees)

    def problem(self, statement: Statement, folders: Mapping[str, str]) -> str:
        """Returns why the text is none, or an empty text."""
        (folder,) = folders.values()
        with open(os.path.join(folder, "note.txt"), "rb") as file:
            return "" if file.read().isascii() else "it is not ASCII"


NOTE = NoteKind()


def register(monkeypatch: Any) -> None:
    """Adds the kind to the table, until the test ends."""
    monkeypatch.setitem(KINDS, NAME, KindRow(f"{__name__}:NOTE", r"[\w*?-]+"))


def publish(store: Any, title: str, number: int, text: bytes, signer: Any) -> str:
    """Publishes a note; returns the digest of its statement."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as file:
        with open(os.path.join(folder, "note.txt"), "wb") as note:
            note.write(text)
        tree, _hashes = blobs.pack(folder, ["note.txt"], file)
        blob = file.read()
    uploads = Uploads(store)  # what is in the store already may be collected at this moment
    uploads.send(tree.blob.name, lambda: store.put_if_absent(tree.blob.name, blob))
    stated = Statement(NAME, title, (tree,), {"number": number, "language": "en"})
    signed = statements.signed(stated, [signer])
    name = statements.name_of(signed.digest)
    uploads.send(name, lambda: store.put_if_absent(name, signed.file()))
    listed = {str(number): ListedStatement(signed.digest)}
    topics.edit_listing(store, NAME, title, lambda there: there._replace(statements={**there.statements, **listed}))
    uploads.keep()
    return signed.digest


def withdraw(store: Any, title: str, number: int, reason: str, signer: Any) -> None:
    """Withdraws a note: it is not chosen any more."""
    said = {f"{NAME}:{title}@{number}": withdrawal_lists.Withdrawal(withdrawal_lists.CHOOSING, reason)}
    withdrawal_lists.publish(store, signer, signer(b"").name, said)
