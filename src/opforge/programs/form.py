"""What is added to torch's file of a program: the ops that it needs, and a statement with the digest of every member.

    ROOT/extra/opforge/ENTRY.library    its library, in base64: torch reads such members as texts
    ROOT/extra/opforge/statement        the last member: the statement, and its signatures

torch writes the first (`extra_files`), and opens the file with or without it. ROOT is torch's folder in it.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from typing import IO

from opforge.cache.records import schemas
from opforge.cache.schema import SHA256, TEXT, choice, items, record, table
from opforge.graphs.bundle import MAX_FEATURES
from opforge.remote import statements
from opforge.remote.kinds import Kind, Shown
from opforge.remote.statements import Statement

KIND = "program"
EXPORTED, AOTI = "exported", "aoti"
FOLDER, STATEMENT = "opforge/", "opforge/statement"
MAX_MEMBERS, MAX_STATEMENT_BYTES = 100_000, 8 << 20
CHUNK = 1 << 20
OP = record({"record": schemas.RECORD, "names": items(TEXT, 1000, 1)})
FACTS = record(
    {
        "form": choice(EXPORTED, AOTI),
        "torch": TEXT,
        "level": TEXT,
        "features": items(TEXT, MAX_FEATURES),
        "files": table(SHA256, most=MAX_MEMBERS),
        "ops": table(OP, most=1000),
    }
)
"""What is said of a file: its members, and by entry the ops in it with their names in torch.ops."""


class ProgramKind(Kind):
    """Files of programs. They carry their statements themselves, and no store has a topic of them."""

    name, is_inline, needs_withdrawals = KIND, True, False

    def subject(self, statement: Statement) -> str:
        """Returns the name of the program."""
        return statement.topic

    def shown(self, statement: Statement) -> Shown:
        """Returns the name, its form, and the torch that wrote it."""
        facts = facts_of(statement)
        return Shown(statement.topic, str(facts["form"]), f"torch {facts['torch']}")


def facts_of(stated: Statement) -> Mapping[str, object]:
    """Returns what a statement of this kind says. Raises UnreadableStatement."""
    return statements.facts_of(stated, FACTS)


def root_of(archive: zipfile.ZipFile) -> str:
    """Returns torch's folder in a file, with a slash. Raises ValueError for what torch would not write."""
    names = [member.filename for member in archive.infolist()]
    roots = {name.partition("/")[0] for name in names}
    if len(roots) != 1 or len(set(names)) != len(names) or len(names) > MAX_MEMBERS:
        raise ValueError("it is no program that torch has saved: expected one folder in it, and each name once")
    for member in archive.infolist():
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{ascii(member.filename)[:100]} is compressed: torch compresses nothing")
    return f"{roots.pop()}/"


def digest_of(file: IO[bytes], target: IO[bytes] | None = None) -> str:
    """Returns the SHA-256 of what is left in a file, and copies it to a target."""
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
    return digest.hexdigest()
