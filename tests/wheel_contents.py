"""Builds the wheel and compares its files with the source tree. `make check` runs this."""

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
    **{part: f"opforge/{part}" for part in ("accelerator", "builders", "cache", "ops", "packages", "remote")},
}
"""Folder of the checkout -> its path in the package."""
MODULES = {"src/opforge_autoload.py": "opforge_autoload.py"}
"""File of the checkout -> its path in the wheel, for modules beside the package."""
SUFFIXES = {".py", ".c", ".cpp", ".cu", ".h", ".in", ".inc", ".typed", ".cmake"}


def checkout_files() -> list[Path]:
    """Returns the files of the checkout that are tracked or new, relative to it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [Path(name) for name in names if os.path.lexists(ROOT / name)]


def expected_files() -> set[str]:
    """Returns the names that the wheel must hold: every source of the package."""
    names = set(MODULES.values())
    for path in checkout_files():
        folder = next((folder for folder in SOURCES if path.is_relative_to(folder)), None)
        if folder and path.suffix in SUFFIXES:
            names.add(f"{SOURCES[folder]}/{path.relative_to(folder)}")
    return names


def main() -> int:
    """Prints the differences. Returns 1 if there are any, or if the build fails."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")  # a copy: nothing is left in the checkout
        for path in checkout_files():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, tree / path, follow_symlinks=False)
        old = tree / "build" / "lib" / "opforge" / "removed.py"  # what an earlier build has left: it is in no wheel
        old.parent.mkdir(parents=True)
        old.touch()
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, str(tree)]
        build = subprocess.run(command, capture_output=True, text=True)
        if build.returncode:
            print(build.stdout, build.stderr, file=sys.stderr)
            return 1
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            actual = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = expected_files()
    for name in sorted(expected - actual):
        print(f"missing from the wheel: {name}")
    for name in sorted(actual - expected):
        print(f"in the wheel, but not in the tree: {name}")
    if wheel.name.split("-")[2:] != ["py3", "none", "any.whl"]:
        print(f"{wheel.name} is not a pure Python wheel")
        return 1
    print(f"{wheel.name}: {len(actual)} files, {'as in the tree' if actual == expected else 'not as in the tree'}")
    return actual != expected


if __name__ == "__main__":
    sys.exit(main())
