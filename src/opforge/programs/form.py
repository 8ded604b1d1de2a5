"""The members added to torch's file of a program: its ops, and a statement with the digest of every member.

    ROOT/extra/opforge/ENTRY.library    its library, in base64: torch reads such members as texts
    ROOT/extra/opforge/statement        the last member: the statement, and its signatures

torch writes the first (`extra_files`), and opens the file with or without it. ROOT is torch's folder in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opforge.cache.records import schemas
from opforge.cache.schema import SHA256, TEXT, choice, items, record, table, whole
from opforge.jits.page import MAX_FEATURES
from opforge.remote import statements
from opforge.remote.kinds import Kind
from opforge.remote.offers import Offer
from opforge.remote.statements import Signed, Statement

from .archive import MAX_MEMBERS, Archive

KIND = "program"
EXPORTED, AOTI = "exported", "aoti"
EXTRA, FOLDER, STATEMENT = "extra/", "opforge/", "opforge/statement"
MAX_STATEMENT_BYTES = 8 << 20
OP = record({"record": schemas.RECORD, "names": items(TEXT, 1000, 1)})
FACTS = record(
    {
        "form": choice(EXPORTED, AOTI),
        "torch": TEXT,
        "level": TEXT,
        "features": items(TEXT, MAX_FEATURES),
        "files": table(record({"sha256": SHA256, "size": whole()}), most=MAX_MEMBERS),
        "ops": table(OP, most=1000),
    }
)
"""The facts of a file: its members, and by entry the ops in it with their names in torch.ops."""


class ProgramKind(Kind):
    """Files of programs. They carry their statements themselves, and no store has a topic of them."""

    name, noun, needs_withdrawals = KIND, "program", False

    def offer(self, stated: Statement) -> Offer:
        """Returns the name, its form, and the torch that wrote it. Raises UnreadableStatement."""
        facts = facts_of(stated)
        return self.offered(stated.topic, str(facts["form"]), f"torch {facts['torch']}", facts, stated.trees)


PROGRAM = ProgramKind()


def facts_of(stated: Statement) -> Mapping[str, Any]:
    """Returns the facts of a statement of this kind. Raises UnreadableStatement."""
    return statements.facts_of(stated, FACTS)


def signed_in(archive: Archive) -> Signed | None:
    """Returns the statement of a file with its signatures, none of which is verified; None if there is none.

    Raises UnreadableStatement, ValueError, OSError.
    """
    name = f"{EXTRA}{STATEMENT}"
    if name not in archive.members:
        return None
    return statements.split_file(archive.read(name, MAX_STATEMENT_BYTES))


def members_problem(archive: Archive, facts: Mapping[str, Any]) -> str:
    """Returns how a file's members and their sizes differ from those in its statement; empty if they are the same."""
    files, members = facts["files"], {**archive.members}
    del members[f"{EXTRA}{STATEMENT}"]
    if differing := sorted(members.keys() ^ files.keys()):
        return f"{differing[0]} is {'not ' if differing[0] in members else ''}in its statement"
    for name, member in members.items():
        if member.size != files[name]["size"]:
            return f"{name} has {member.size} bytes, and {files[name]['size']} in its statement"
    if facts["form"] == AOTI and not any(name.endswith(".so") for name in members):
        return "it has no library of AOTInductor"
    return ""
