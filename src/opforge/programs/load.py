"""`opforge.load_program`: nothing of a file reaches torch before its signature and all its digests are verified."""

from __future__ import annotations

import base64
import os
import zipfile
from collections.abc import Mapping
from typing import Any

from opforge.builders import loader
from opforge.builders.declaration import machine
from opforge.builders.lookup import fit
from opforge.cache.current_store import temporary
from opforge.cache.keys import bytes_digest, canonical
from opforge.errors import ProgramError, SignatureError
from opforge.fast_path import library
from opforge.fast_path.library import RECORD, Entry
from opforge.foundation.arguments import checked
from opforge.jits import features, private_folder
from opforge.remote import statements
from opforge.remote.signatures import trust_file
from opforge.remote.statements import UnreadableStatement

from . import archive, form, origins
from .archive import Archive
from .form import AOTI, EXPORTED, EXTRA, FOLDER, KIND
from .origins import Origin

AGAIN = "Get it again, or have it saved again with opforge.save_program"
ELSEWHERE = "Compile it on a machine such as this one: AOTInductor makes code for one torch and one processor"
SAVED = "Save it with opforge.save_program"
UNSIGNED = "Have it signed, or pass unsigned=True if nobody but you could have written it"
OTHER_NAME = "Another program may be in its place. If it is the one that you expect, pass name={!r}"
OTHER_VERSION = "Load the program before another version of the op"


@checked
def load_program(path: str | os.PathLike[str], *, name: str = "", unsigned: bool = False) -> Any:
    """Returns the program in a file that `save_program` has written, after loading its ops.

    The ops are registered under their public names. Neither a compiler nor a store is needed. The signature is verified
    first, then the size and the digest of each part of the file; torch opens a copy that holds only the verified parts.

    Args:
        path: The file.
        name: The program that is expected. Its key must be trusted for `program:NAME`, and have signed it under this
            name. By default the name of the file.
        unsigned: Load it without a signature. It holds machine code and may hold pickles.

    Returns:
        A torch.export.ExportedProgram; for a package of AOTInductor, a callable.

    Raises:
        ProgramError: The file is damaged, or does not fit this machine.
        SignatureError: No key that is trusted for `program:NAME` signed it, or it is another program.
    """
    path = os.fspath(path)
    try:
        with temporary("opforge-") as folder, Archive(path) as file:
            facts, origin = _verified(path, file, name or archive.name_of(path), unsigned)
            if problem := form.members_problem(file, facts):
                raise ProgramError(path, problem, AGAIN)
            _check_machine(path, facts)
            clean = os.path.join(folder, "program.pt2")
            _copy(path, file, facts["files"], clean)
            _load_ops(path, file, facts["ops"], origin)
            program = _opened(path, clean, facts["form"])
            if facts["form"] == EXPORTED:
                origins.note_program(program, origin)
            return program
    except ProgramError:
        raise
    except (OSError, ValueError, UnreadableStatement) as error:
        raise ProgramError(path, str(error), AGAIN) from error


def _verified(path: str, file: Archive, name: str, unsigned: bool) -> tuple[Mapping[str, Any], Origin]:
    """Returns the facts of the signed statement, and the signer.

    Raises SignatureError, UnreadableStatement, ProgramError.
    """
    signed = form.signed_in(file)
    if signed is None:
        raise ProgramError(path, "it has no statement of its digests", SAVED)
    if unsigned:
        return form.facts_of(statements.parse_as(signed.data, KIND)), Origin(path, ())
    if not signed.signatures:
        raise SignatureError(path, "it has no signature", UNSIGNED)
    signers = trust_file.read().signers(path, signed.data, signed.signatures)
    stated = statements.parse_as(signed.data, KIND)
    signers = trust_file.allowed(signers, f"{KIND}:{stated.topic}", path)
    if stated.topic != name:
        reason = f"it was signed as the program {stated.topic!r}, and {name!r} is expected"
        raise SignatureError(path, reason, OTHER_NAME.format(stated.topic))
    return form.facts_of(stated), Origin(path, tuple(each.key for each in signers))


def _copy(path: str, file: Archive, files: Mapping[str, Any], clean: str) -> None:
    """Writes the verified members to a new file: another reader could find other members in the old one."""
    with zipfile.ZipFile(clean, "x", zipfile.ZIP_STORED) as target:
        for name, stated in files.items():
            with target.open(f"program/{name}", "w", force_zip64=True) as copy:
                if file.digest_of(name, copy) != stated["sha256"]:
                    raise ProgramError(path, f"the digest of {name} differs from that in its statement", AGAIN)


def _check_machine(path: str, facts: Mapping[str, Any]) -> None:
    """Raises ProgramError for a package of AOTInductor that was compiled for another torch or processor."""
    if facts["form"] != AOTI:
        return
    here = machine.this_machine()
    level = here.level or here.processor
    problem = features.lacking(facts["features"])
    if not facts["features"] and facts["level"] != level:  # its machine did not say what it has
        problem = f"it was compiled for {facts['level']}, and this processor offers {level}"
    if facts["torch"] != here.torch:
        problem = f"it was compiled with torch {facts['torch']}, and this is torch {here.torch}"
    if problem:
        raise ProgramError(path, problem, ELSEWHERE)


def _load_ops(path: str, file: Archive, ops: Mapping[str, Any], origin: Origin) -> None:
    """Loads the ops of a file that are not loaded. Raises ProgramError, and what loading an op raises."""
    here = machine.this_machine()
    for key, stated in ops.items():
        record, what = stated["record"], f"its op {stated['record']['op']!r}"
        if key not in library.by_entry:
            if problem := fit.entry_problem(record, here):
                raise ProgramError(path, f"{what} cannot be loaded here: {problem}", "Save it for this machine")
            member = f"{EXTRA}{FOLDER}{key}.library"
            content = base64.b64decode(file.read(member, 2 * record["size"] + 4), validate=True)
            if bytes_digest(content) != record["sha256"] or not library.is_record(record):
                raise ProgramError(path, f"{what} is not the library of its record", AGAIN)
            # Not removed before the process ends: the op's path is there, and it may be saved again.
            entry = Entry(key, private_folder.temporary(), record, path)
            for name, data in ((entry.record["file"], content), (RECORD, canonical(record))):
                with open(os.path.join(entry.folder, name), "xb") as written:
                    written.write(data)
            loader.load_entry(record["op"], entry, {}, {})
            origins.note_entry(key, origin)
        if [*library.defined.get(key, ())] != stated["names"]:
            other = f"{what} is not torch.ops.{stated['names'][0].replace('::', '.')}: another version has that name"
            raise ProgramError(path, other, OTHER_VERSION)


def _opened(path: str, clean: str, kind: str) -> Any:
    """Returns the program that torch loads from the copy. Raises ProgramError if it cannot read that."""
    import torch

    try:
        return torch._inductor.aoti_load_package(clean) if kind == AOTI else torch.export.load(clean)
    except Exception as error:  # torch has no error of its own for it
        problem = f"torch {torch.__version__} cannot open it ({type(error).__name__}: {str(error)[:300]})"
        raise ProgramError(path, problem, AGAIN) from error
