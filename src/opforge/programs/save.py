"""`opforge.save_program`: a program and the ops that it needs in one file, with a signed list of digests."""

from __future__ import annotations

import base64
import os
import re
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from opforge.builders.declaration import machine
from opforge.cache import schema
from opforge.cache.keys import bytes_digest
from opforge.cache.records import schemas
from opforge.errors import ProgramError
from opforge.fast_path import library
from opforge.fast_path.library import RECORD, Entry
from opforge.foundation.arguments import checked
from opforge.foundation.files import temp_path
from opforge.graphs.topic import EXPECTED
from opforge.jits import features as processors
from opforge.jits.page import LABEL
from opforge.remote import statements
from opforge.remote.signatures import keys
from opforge.remote.statements import Statement

from . import archive, form, origins
from .archive import Archive
from .form import AOTI, EXPORTED, EXTRA, FOLDER, KIND, STATEMENT

if TYPE_CHECKING:
    from torch.export import ExportedProgram

LOAD_IT = "Load it with opforge before the program is saved"
BUILT_HERE = (
    "Build it here, with an empty OPFORGE_CACHE_DIR and without OPFORGE_REMOTES and layers, and save it in a process"
    " that has loaded no program, or pass signed=False"
)
NEW_PROCESS = "Export and save it in a process that has loaded this version of the op alone"


@checked
def save_program(
    path: str | os.PathLike[str],
    program: ExportedProgram | str | os.PathLike[str],
    *,
    ops: Iterable[Any] | None = None,
    name: str = "",
    signed: bool = True,
) -> None:
    """Saves a program with the ops that it needs, so that `load_program` loads both.

    `torch.export.load` opens the file too, where the ops are loaded already.

    Args:
        path: The file, by custom FILE.pt2. An existing file is replaced.
        program: A torch.export.ExportedProgram, or the path of a package of AOTInductor.
        ops: The ops, as `opforge.load` returns them. By default those that the program's graph calls and that opforge
            has loaded; none for a package of AOTInductor.
        name: The program's name in the statement: a key must be trusted for `program:NAME`. By default the file's name.
        signed: Whether it is signed, which says that all of it was made here. Without, `load_program` needs
            `unsigned=True`.

    Raises:
        ProgramError: An op was not loaded by opforge, or was edited in this process, or it or the program came from
            elsewhere and would be signed, or the file cannot be written.
        KeyFileError: No signing key is configured.
    """
    import torch

    path = os.fspath(path)
    name = name or archive.name_of(path)
    if not re.fullmatch(LABEL, name):
        raise ProgramError(path, f"its name {name!r} cannot be one", f"Use {EXPECTED}")
    entries = _entries(path, program) if ops is None else [_entry(path, op) for op in ops]
    signers = [keys.signer()] if signed else []
    if signers and (problem := origins.problem(program, entries, signers[0])):
        raise ProgramError(path, problem, BUILT_HERE)
    temporary = temp_path(path)
    try:
        if isinstance(program, (str, os.PathLike)):
            shutil.copyfile(program, temporary)
            _append(temporary, _members(entries))
            kind = AOTI
        else:
            with open(temporary, "xb") as file:
                torch.export.save(program, file, extra_files=_members(entries))
            kind = EXPORTED
        stated = Statement(KIND, name, (), _facts(temporary, kind, entries))
        content = statements.signed(stated, signers, form.MAX_STATEMENT_BYTES).file().decode("ascii")
        _append(temporary, {STATEMENT: content})
        _check(temporary)
        os.replace(temporary, path)
    except (OSError, ValueError) as error:
        raise ProgramError(path, f"it was not saved: {error}", "Save it again") from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _check(path: str) -> None:
    """Reads the written file, as `load_program` does. Raises ValueError, OSError."""
    with Archive(path) as written:
        signed = form.signed_in(written)
        facts = form.facts_of(statements.parse_as(signed.data if signed else b"", KIND))
        if problem := form.members_problem(written, facts):
            raise ValueError(problem)


def _entries(path: str, program: Any) -> list[Entry]:
    """Returns the entries of the ops that a program's graph calls."""
    if isinstance(program, (str, os.PathLike)):
        return []
    called = {node.target._schema.name for node in program.graph.nodes if hasattr(node.target, "_schema")}
    spaces = {f"{name.partition('::')[0]}::" for name in called}
    with library.lock:
        found = [key for key, names in library.defined.items() if not {*called, *spaces}.isdisjoint(names)]
        ops = [library.by_entry.get(key, (key, {}))[0] for key in found]
    return [_entry(path, op) for op in ops]


def _entry(path: str, op: Any) -> Entry:
    """Returns the entry of a loaded op, with its whole record: a remembered record lacks fields."""
    entry = getattr(op, "__entry__", None)
    if not isinstance(entry, Entry) or entry.key not in library.defined:
        raise ProgramError(path, f"{op!r} is not an op in torch.ops that opforge has loaded", LOAD_IT)
    space = next(iter(library.defined[entry.key]), "").partition("::")[0]  # none: kernels for ops of others
    if space.endswith(entry.suffix):
        problem = f"its op {op.__name__!r} was edited in this process, and no other one knows torch.ops.{space}"
        raise ProgramError(path, problem, NEW_PROCESS)
    try:
        return entry._replace(record=schema.read(os.path.join(entry.folder, RECORD), schemas.RECORD))
    except (OSError, ValueError) as error:
        problem = f"the record of its op {op.__name__!r} in {entry.folder} cannot be read: {error}"
        raise ProgramError(path, problem, LOAD_IT) from error


def _members(entries: Iterable[Entry]) -> dict[str, str]:
    """Returns the members that hold libraries. Raises OSError, ValueError for one that is damaged."""
    members = {}
    for entry in entries:
        with open(entry.library, "rb") as file:
            content = file.read()
        if bytes_digest(content) != entry.record["sha256"]:
            raise ValueError(f"{entry.library} is damaged: it is not the library of its record")
        members[f"{FOLDER}{entry.key}.library"] = base64.b64encode(content).decode("ascii")
    return members


def _append(path: str, members: Mapping[str, str]) -> None:
    """Adds members to a file of torch. Raises ValueError for another file."""
    with Archive(path) as written:
        root = written.root
        if there := sorted(name for name in members if f"{EXTRA}{name}" in written.members):
            raise ValueError(f"{EXTRA}{there[0]} is in it already: expected a file that torch has written")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as file:
        for name, content in members.items():
            file.writestr(f"{root}{EXTRA}{name}", content)


def _facts(path: str, kind: str, entries: Iterable[Entry]) -> dict[str, object]:
    here = machine.this_machine()
    with Archive(path) as written:
        sizes = {name: member.size for name, member in written.members.items()}
        files = {name: {"sha256": written.digest_of(name), "size": size} for name, size in sizes.items()}
    ops = {entry.key: {"record": dict(entry.record), "names": [*library.defined[entry.key]]} for entry in entries}
    features = [*processors.features()] if kind == AOTI else []
    level = here.level or here.processor
    return {"form": kind, "torch": here.torch or "", "level": level, "features": features, "files": files, "ops": ops}
