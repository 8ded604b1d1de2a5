"""Coverage-guided fuzzing of what a remote answers. Needs atheris (pip install atheris); the tests do not.

    python tests/fuzz/fuzz_statements.py -runs=100000 [CORPUS_FOLDER]

The first byte of an input chooses what the rest is: a topic that holds statements, or names
them; a statement that is signed by a trusted key; a list of withdrawals that is; a blob that its statement names;
the seed of damage to a valid one of each. Whatever the input,
what reads it returns, or raises ValueError, and writes nothing outside of its folder.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile

from support.remote import op_offers

from opforge.remote.op_statements import OP

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support.fuzzing import json_mutations, mutations
from support.store.fake_store import FakeStore

from opforge.cache.keys import bytes_digest, canonical
from opforge.cache.records.entry import read_record
from opforge.remote import blobs, statements, topics, withdrawal_lists
from opforge.remote.signatures import signing

FRAME, OFFER, LIST, BLOB, LISTING = range(5)


class StatementTarget:
    """A valid topic of each form, statement, list of withdrawals and blob, each with what reads it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        store = FakeStore(os.path.join(folder, "store"), os.path.join(folder, "src"))
        entry = store.layout.entry(store.add("relu"))
        record = read_record(entry)
        assert record is not None
        with open(os.path.join(folder, "valid"), "w+b") as file:
            tree, _hashes = blobs.pack(entry, [record["file"]], file)
            packed = file.read()
        self.tree = tree
        data = op_offers.statement(record, "d" * 32, tree).data()
        signed = statements.Signed(data, (signing.Named("ci", bytes(64)),))
        listed = withdrawal_lists.to_bytes(
            withdrawal_lists.Withdrawals(
                "ci", 1e9, {"op:" + "e" * 32: withdrawal_lists.Withdrawal(withdrawal_lists.LOADING, "bad", 1e9)}
            )
        )
        listing = topics.Listing(
            "note", "x", 3, {"1": topics.ListedStatement("a" * 64), "2": topics.ListedStatement("b" * 64)}
        )
        self.valid = {
            FRAME: topics.frame([signed, signed]),
            OFFER: data,
            LIST: listed,
            BLOB: packed,
            LISTING: listing.data(),
        }

    def content(self, data: bytes) -> tuple[int, bytes]:
        """Returns what the input is, and its bytes."""
        kind, how = divmod(data[0] if data else 0, 52)
        chance = random.Random(data[1:])
        if how < 12 or kind not in self.valid:
            return kind % 5, data[1:]
        if how < 32 and kind in (OFFER, LIST, LISTING):
            damaged = json_mutations.mutated(self.valid[kind], chance)
            try:
                return kind, canonical(json.loads(damaged))  # otherwise all would be refused for their form
            except (ValueError, RecursionError):
                return kind, damaged
        return kind, chance.choice(mutations.KINDS)(self.valid[kind], chance)

    def run(self, data: bytes) -> str:
        """Reads an input; returns the problem, or an empty text. Raises AssertionError."""
        kind, content = self.content(data)
        before = sorted(os.listdir(self.folder))
        try:
            if kind == FRAME:
                for item in topics.read_frame(content):
                    assert len(item.data) <= topics.MAX_ITEM_BYTES
            elif kind == OFFER:
                offer = OP.parse(content, "d" * 32)
                assert os.path.basename(offer.label) == offer.label
                assert ".." not in offer.tree.blob.name
            elif kind == LIST:
                withdrawal_lists.parse(content).age_problem(30.0, 1e9)
            elif kind == LISTING:
                listing = topics.read_listing(content, "note", "x")
                assert topics.read_listing(listing.data(), "note", "x") == listing
            else:
                self._unpack(content)
        except ValueError as error:
            return str(error) or "refused"
        finally:
            shutil.rmtree(os.path.join(self.folder, "entry"), ignore_errors=True)
            if os.path.exists(os.path.join(self.folder, "input")):
                os.unlink(os.path.join(self.folder, "input"))
        assert sorted(os.listdir(self.folder)) == before
        return ""

    def _unpack(self, content: bytes) -> None:
        """Unpacks a blob whose digest is that of its statement: the signer has packed it."""
        blob = blobs.Blob(bytes_digest(content), len(content), self.tree.blob.unpacked)
        with open(os.path.join(self.folder, "input"), "w+b") as file:
            file.write(content)
            file.flush()
            blobs.unpack(file, self.tree._replace(blob=blob), os.path.join(self.folder, "entry"))


def main() -> None:
    """Runs atheris until an input fails."""
    import atheris

    with tempfile.TemporaryDirectory(prefix="opforge-fuzz-") as folder:
        target = StatementTarget(folder)
        atheris.instrument_all()
        atheris.Setup(sys.argv, lambda data: target.run(data) and None)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
