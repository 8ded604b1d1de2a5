"""`opforge.save_program`: a program and the ops that it needs in one file, with a signed list of digests."""

from __future__ import annotations

import base64
import os
import re
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

from opforge.builders.declaration import machine
from opforge.errors import ProgramError
from opforge.graphs import topic
from opforge.machine_folder import temp_path
from opforge.remote import statements
from opforge.remote.signatures import keys
from opforge.remote.statements import Statement
from opforge.warm import library
from opforge.warm.library import Entry

from . import form
from .form import AOTI, EXPORTED, FOLDER, KIND, STATEMENT

EXTRA = "extra/"
LOAD_IT = "Load it with opforge before the program is saved"


def save_program(
    path: str, program: Any, *, ops: Iterable[Any] | None = None, name: str = "", signed: bool = True
) -> None:
    """Saves a program with the ops that it needs, so that `load_program` loads both.

    `torch.export.load` opens the file too, where the ops are loaded already.

    Args:
        path: The file, by custom FILE.pt2. One that is there is replaced.
        program: A torch.export.ExportedProgram, or the path of a package of AOTInductor.
        ops: The ops, as `opforge.load` returns them. By default those that the program's graph calls and that opforge
            has loaded; none for a package of AOTInductor.
        name: What the statement calls it: a key must be trusted for `program:NAME`. By default the name of the file.
        signed: Whether it is signed. Without, `load_program` needs `unsigned=True`.

    Raises:
        ProgramError: An op was not loaded by opforge, or the file cannot be written.
        KeyFileError: Nothing says which key signs.
    """
    import torch

    name = name or re.sub(r"[^\w-]", "_", os.path.basename(path).partition(".")[0])
    if not topic.NAME.fullmatch(name):
        raise ProgramError(path, f"its name {name!r} cannot be one", f"Use {topic.EXPECTED}")
    entries = _entries(path, program) if ops is None else [_entry(path, op) for op in ops]
    signers = [keys.signer()] if signed else []
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
        os.replace(temporary, path)
    except (OSError, ValueError) as error:
        raise ProgramError(path, f"it was not saved: {error}", "Save it again") from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _entries(path: str, program: Any) -> list[Entry]:
    """Returns the entries of the ops that a program's graph calls."""
    if isinstance(program, (str, os.PathLike)):
        return []
    called = {node.target._schema.name for node in program.graph.nodes if hasattr(node.target, "_schema")}
    spaces = {f"{name.partition('::')[0]}::" for name in called}
    found = [key for key, names in library.defined.items() if not {*called, *spaces}.isdisjoint(names)]
    return [_entry(path, library.by_entry[key][0]) for key in found]


def _entry(path: str, op: Any) -> Entry:
    entry = getattr(op, "__entry__", None)
    if not isinstance(entry, Entry) or entry.key not in library.defined:
        raise ProgramError(path, f"{op!r} is no op in torch.ops that opforge has loaded", LOAD_IT)
    return entry


def _members(entries: Iterable[Entry]) -> dict[str, str]:
    members = {}
    for entry in entries:
        with open(entry.library, "rb") as file:
            members[f"{FOLDER}{entry.key}.library"] = base64.b64encode(file.read()).decode("ascii")
    return members


def _append(path: str, members: Mapping[str, str]) -> None:
    """Adds members to a file of torch. Raises ValueError for what is none."""
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        root = form.root_of(archive)
        for name, content in members.items():
            archive.writestr(f"{root}{EXTRA}{name}", content)


def _facts(path: str, kind: str, entries: Iterable[Entry]) -> dict[str, object]:
    here = machine.this_machine()
    with zipfile.ZipFile(path) as archive:
        root, files = form.root_of(archive), dict[str, str]()
        for member in archive.infolist():
            with archive.open(member) as file:
                files[member.filename.removeprefix(root)] = form.digest_of(file)
    ops = {entry.key: {"record": dict(entry.record), "names": [*library.defined[entry.key]]} for entry in entries}
    features = [*topic.features()] if kind == AOTI else []
    level = here.level or here.processor
    return {"form": kind, "torch": here.torch or "", "level": level, "features": features, "files": files, "ops": ops}
