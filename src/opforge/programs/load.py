"""`opforge.load_program`: nothing of a file reaches torch before its signature and all its digests are verified."""

from __future__ import annotations

import base64
import os
import tempfile
import zipfile
from collections.abc import Mapping
from typing import IO, Any

from opforge.builders import loader
from opforge.builders.declaration import machine
from opforge.builders.lookup import fit
from opforge.cache.keys import bytes_digest
from opforge.errors import ProgramError, SignatureError
from opforge.graphs import topic
from opforge.remote import statements
from opforge.remote.signatures import trust
from opforge.remote.statements import UnreadableStatement
from opforge.warm import library
from opforge.warm.library import Entry

from . import form
from .form import AOTI, FOLDER, KIND, STATEMENT
from .save import EXTRA

AGAIN = "Get it again, or have it saved again with opforge.save_program"
ELSEWHERE = "Compile it on a machine such as this one: AOTInductor makes code for one torch and one processor"
SAVED = "Save it with opforge.save_program"
UNSIGNED = "Have it signed, or pass unsigned=True if nobody but you could have written it"
OTHER_VERSION = "Load the program before another version of the op"


def load_program(path: str, *, unsigned: bool = False) -> Any:
    """Returns the program in a file that `save_program` has written, after loading its ops.

    The ops are registered under their public names. Neither a compiler nor a store is needed. The signature is verified
    first, then the digest of each part of the file; torch opens a copy that holds what was verified and nothing else.

    Args:
        path: The file.
        unsigned: Load it without a signature. It holds machine code and may hold pickles.

    Returns:
        A torch.export.ExportedProgram; for a package of AOTInductor what calls it.

    Raises:
        ProgramError: The file is damaged, or does not fit this machine.
        SignatureError: No key that is trusted for `program:NAME` signed it.
    """
    import torch

    try:
        with tempfile.TemporaryDirectory(prefix="opforge-") as folder, zipfile.ZipFile(path) as archive:
            root = form.root_of(archive)
            facts = _verified(path, archive, root, unsigned)
            clean = os.path.join(folder, "program.pt2")
            _copy(path, archive, root, facts["files"], clean)
            _check_machine(path, facts)
            _load_ops(path, archive, root, facts["ops"], folder)
            if facts["form"] == AOTI:
                return torch._inductor.aoti_load_package(clean)
            return torch.export.load(clean)
    except ProgramError:
        raise
    except (OSError, ValueError, zipfile.BadZipFile, UnreadableStatement) as error:
        raise ProgramError(path, str(error), AGAIN) from error


def _verified(path: str, archive: zipfile.ZipFile, root: str, unsigned: bool) -> Mapping[str, Any]:
    """Returns what the signed statement says. Raises SignatureError, UnreadableStatement, ProgramError."""
    try:
        member = archive.getinfo(f"{root}{EXTRA}{STATEMENT}")
    except KeyError:
        raise ProgramError(path, "it has no statement of its digests", SAVED) from None
    if member.file_size > form.MAX_STATEMENT_BYTES:
        raise ProgramError(path, f"its statement has {member.file_size} bytes", AGAIN)
    signed = statements.split_file(archive.read(member))
    if unsigned:
        return form.facts_of(statements.parse_as(signed.data, KIND))
    if not signed.signatures:
        raise SignatureError(path, "it has no signature", UNSIGNED)
    signers = trust.read().signers(path, signed.data, signed.signatures)
    stated = statements.parse_as(signed.data, KIND)
    trust.allowed(signers, f"{KIND}:{stated.topic}", path)
    return form.facts_of(stated)


def _copy(path: str, archive: zipfile.ZipFile, root: str, files: Mapping[str, str], clean: str) -> None:
    """Writes what was verified to a new file: another reader of the old one could find other members in it."""
    names = {member.filename.removeprefix(root) for member in archive.infolist()} - {f"{EXTRA}{STATEMENT}"}
    if differing := sorted(names ^ files.keys()):
        raise ProgramError(path, f"{differing[0]} is {'not ' if differing[0] in names else ''}in its statement", AGAIN)
    with zipfile.ZipFile(clean, "x", zipfile.ZIP_STORED) as target:
        for name, digest in files.items():
            with archive.open(f"{root}{name}") as source, _opened(target, f"program/{name}") as copy:
                if form.digest_of(source, copy) != digest:
                    raise ProgramError(path, f"the digest of {name} differs from that in its statement", AGAIN)


def _opened(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    return archive.open(name, "w", force_zip64=True)


def _check_machine(path: str, facts: Mapping[str, Any]) -> None:
    """Raises ProgramError for a package of AOTInductor that was compiled for another torch or processor."""
    if facts["form"] != AOTI:
        return
    here = machine.this_machine()
    level = here.level or here.processor
    problem = topic.lacking(facts["features"])
    if not facts["features"] and facts["level"] != level:  # its machine did not say what it has
        problem = f"it was compiled for {facts['level']}, and this processor offers {level}"
    if facts["torch"] != here.torch:
        problem = f"it was compiled with torch {facts['torch']}, and this is torch {here.torch}"
    if problem:
        raise ProgramError(path, problem, ELSEWHERE)


def _load_ops(path: str, archive: zipfile.ZipFile, root: str, ops: Mapping[str, Any], folder: str) -> None:
    """Loads the ops of a file that are not loaded. Raises ProgramError, and what loading an op raises."""
    here = machine.this_machine()
    for key, stated in ops.items():
        record, what = stated["record"], f"its op {stated['record']['op']!r}"
        if key not in library.by_entry:
            if problem := fit.entry_problem(record, here):
                raise ProgramError(path, f"{what} cannot be loaded here: {problem}", "Save it for this machine")
            content = base64.b64decode(archive.read(f"{root}{EXTRA}{FOLDER}{key}.library"), validate=True)
            if bytes_digest(content) != record["sha256"]:
                raise ProgramError(path, f"{what} is not the library of its record", AGAIN)
            place = os.path.join(folder, os.path.basename(key))
            os.mkdir(place, 0o700)
            entry = Entry(key, place, record, path)
            with open(entry.library, "xb") as file:
                file.write(content)
            loader.load_entry(record["op"], entry, {}, {})
        if [*library.defined.get(key, ())] != stated["names"]:
            other = f"{what} is not torch.ops.{stated['names'][0].replace('::', '.')}: another version has that name"
            raise ProgramError(path, other, OTHER_VERSION)
