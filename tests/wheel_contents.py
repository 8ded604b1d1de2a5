"""Builds the wheel and holds its file list against the tree: a part of `make check`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    "src/opforge": "opforge",
    **{room: f"opforge/{room}" for room in ("accelerator", "builders", "cache", "ops")},
}
SUFFIXES = {".py", ".cpp", ".cu", ".h", ".typed"}


def listed() -> list[Path]:
    """Every tracked or new file of the checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [Path(name) for name in names if os.path.lexists(ROOT / name)]


def expected() -> set[str]:
    """What the wheel must hold: every source of the package, under its place in the package."""
    found = set()
    for path in listed():
        if path.suffix in SUFFIXES and any(path.is_relative_to(room) for room in SOURCES):
            room = next(room for room in SOURCES if path.is_relative_to(room))
            found.add(f"{SOURCES[room]}/{path.relative_to(room)}")
    return found


def main() -> int:
    """Compare, print what differs, and return 1 if anything does."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")  # a copy, so that neither an old build folder nor this one leaves a trace
        for path in listed():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, tree / path, follow_symlinks=False)
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, str(tree)]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode:
            print(built.stdout, built.stderr, file=sys.stderr)
            return 1
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            held = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = expected()
    for name in sorted(wanted - held):
        print(f"missing from the wheel: {name}")
    for name in sorted(held - wanted):
        print(f"in the wheel, but not in the tree: {name}")
    if wheel.name.split("-")[2:] != ["py3", "none", "any.whl"]:
        print(f"{wheel.name} is not a pure Python wheel")
        return 1
    print(f"{wheel.name}: {len(held)} files, {'as in the tree' if held == wanted else 'not as in the tree'}")
    return held != wanted


if __name__ == "__main__":
    sys.exit(main())
