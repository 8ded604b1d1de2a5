"""Runs opforge with each torch and each Python, and writes what happened to .ci/versions.json and docs/versions.md.

    python .ci/matrix.py                                # make matrix
    python .ci/matrix.py --torch 2.12.1 --python 3.12   # these rows alone; the others stay as they are
    python .ci/matrix.py --page                         # writes the page from the file, and runs nothing
    python .ci/matrix.py --stand-ins                    # without NVIDIA's libraries, which take 3 GB a row

The rows are every release of torch from 2.10 on, each with this Python, which should be the oldest, with the newest
that it can be installed for, and with the free-threaded one; and torch 2.13 with every Python. Each has an environment
of its own, one at a time, which is removed afterwards. In it the ops of a layer that zig has built here, for an old
glibc, are loaded and compared with their references, an op and a source on the facade are built and compared, and a
part of the unit tests is run.
What pip cannot install, or has no interpreter here, is a row "not run".

A Python that this machine lacks is taken from Debian's testing release, in a folder that debootstrap makes: with that
release's compiler and C library. See chroot.py.
"""

from __future__ import annotations

import argparse
import glob
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from packaging.version import Version

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import chroot
import stand_ins
from chroot import Chroot, ChrootError

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, ".ci", "versions.json")
PAGE = os.path.join(ROOT, "docs", "versions.md")
OLDEST_TORCH, PINNED_TORCH = "2.10", "2.13.0"
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.14t", "3.15")
"""3.14t is the free-threaded one."""
NEWEST = [python for python in reversed(PYTHONS) if not python.endswith("t")]
HERE = "{}.{}".format(*sys.version_info)
TESTS = ("cache", "accelerator", "foundation", "builders/declaration", "builders/lookup")
"""Of tests/unit."""
TEST_NEEDS = ("numpy", "pytest>=8.3", "pytest-timeout", "hypothesis", "jsonschema", "packaging")
LAYER_TARGET = "cpu:x86-64-v3"
BUILT = "CPUAdam"
FACADE = """
import opforge, torch
source = "at::Tensor twice(const at::Tensor& x) { return x * c10::complex<double>(2, 0).real(); }"
op = opforge.load_inline("twice", [source], functions=["twice"], abi="torch-facade")
x = torch.randn(5)
assert torch.equal(op.twice(x), x * 2)
"""
"""Builds a source that begins with torch/extension.h: the headers of each torch differ."""
RAN = ("ok", "failed")
CHECKED = ("--device", "cpu", "--json", "--timeout", "600")
"""Options of `opforge check`. An op may be slow on a busy machine."""
MOST_TEXT = 600
"""Characters of a reason."""
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


class StepError(Exception):
    """A step of a row failed; its text says which, and how."""


class Folders(NamedTuple):
    """What the rows share."""

    wheel: str
    layer: str
    ops: Sequence[str]
    """Of the layer."""
    debian: Chroot | None
    """The newest Debian; None if none can be made."""
    no_debian: str = ""
    """Why not."""
    stand_ins: bool = False
    """Whether libraries stand in for NVIDIA's."""
    tests: Sequence[str] = TESTS


def main() -> None:
    """Reads the arguments, runs the rows, and writes both files after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", nargs="*", default=[], help="releases; by default all that pip lists")
    parser.add_argument("--python", nargs="*", default=[], help="such as 3.12; by default all")
    parser.add_argument("--ops", nargs="*", default=[], help="of the layer; by default all of the CPU")
    parser.add_argument("--chroot", help="a folder with Debian's testing release; by default one is made, and removed")
    parser.add_argument("--layer", help="a layer of these ops; by default one is built, and removed")
    parser.add_argument("--stand-ins", action="store_true", help="empty libraries in the place of NVIDIA's")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="of tests/unit; none without a name")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    rows = read_rows()
    if not options.page:
        with tempfile.TemporaryDirectory(prefix="opforge-matrix-") as folder:
            folders = prepared(folder, options.ops, options.chroot, options.layer)
            folders = folders._replace(stand_ins=options.stand_ins, tests=options.tests)
            for torch, python in selected(rows, options.torch, options.python):
                rows[key(torch, python)] = row = run_row(torch, python, folders)
                print(json.dumps(row), flush=True)
                write(rows)
    write(rows)


def key(torch: str, python: str) -> str:
    """Returns the name of a row."""
    return f"{torch} {python}"


def read_rows() -> dict[str, dict[str, Any]]:
    """Returns the rows of earlier runs, by their names."""
    if not os.path.exists(RESULTS):
        return {}
    with open(RESULTS, encoding="utf-8") as file:
        return {key(row["torch"], row["python"]): row for row in json.load(file)}


def selected(rows: Mapping[str, dict[str, Any]], torches: Sequence[str], pythons: Sequence[str]) -> Any:
    """Yields (torch, Python) of each row. Of the newest Pythons for a torch all are tried until one is installed."""
    for torch in torches or listed_releases():
        if not pythons:
            yield torch, HERE
            for python in NEWEST:
                yield torch, python
                if rows[key(torch, python)]["state"] in RAN:
                    break
            yield torch, "3.14t"
        for python in pythons or (PYTHONS if torch == PINNED_TORCH else ()):
            if pythons or key(torch, python) not in rows:
                yield torch, python


def listed_releases() -> list[str]:
    """Returns every release of torch from the oldest on that pip lists, the oldest first."""
    output = run([sys.executable, "-m", "pip", "index", "versions", "torch"])
    line = next(line for line in output.splitlines() if line.startswith("Available versions:"))
    releases = {Version(text.strip()).public for text in line.partition(":")[2].split(",")}
    return sorted((release for release in releases if Version(release) >= Version(OLDEST_TORCH)), key=Version)


def prepared(folder: str, ops: Sequence[str], root: str | None, made: str | None) -> Folders:
    """Makes the wheel of opforge, the layer of these ops, with the torch and the Python that are here, and a chroot.

    Each of the two folders may be one that was made before.
    """
    source, store = os.path.join(folder, "source"), os.path.join(folder, "store")
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "docs", "tests", "benchmarks")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", folder, "."]
    run(pip, cwd=source)
    opforge, layer = [sys.executable, "-m", "opforge"], made or os.path.join(folder, "layer")
    # Without names a check has a time limit for all ops together.
    ops = ops or [row["name"] for row in json.loads(run([*opforge, "check", "--list", "--device", "cpu", "--json"]))]
    if not made:
        command = [*opforge, "build-ops", *ops, "--portable", "--target", LAYER_TARGET, "--out", layer]
        run(command, OPFORGE_CACHE_DIR=store, OPFORGE_ACCELERATOR="cpu")
    (wheel,) = glob.glob(os.path.join(folder, "*.whl"))
    try:
        debian = Chroot(root) if root else chroot.made(os.path.join(folder, "debian"))
        return Folders(wheel, layer, ops, debian)
    except ChrootError as error:
        return Folders(wheel, layer, ops, None, str(error))


def run_row(torch: str, python: str, folders: Folders) -> dict[str, Any]:
    """Returns the row of a torch and a Python."""
    row = {"torch": torch, "python": python, "date": time.strftime("%Y-%m-%d"), "state": "not run"}
    interpreter, inside = find_interpreter(python), None
    if not interpreter and folders.debian:
        interpreter, inside = folders.debian.interpreter(python), folders.debian
    if not interpreter:
        where = "nor in Debian's testing release" if folders.debian else f"and no other one: {folders.no_debian}"
        return {**row, "reason": f"there was no such interpreter on the machine, {where}"}
    with tempfile.TemporaryDirectory(prefix="opforge-matrix-") as folder, entered(inside, folder, folders):
        environment = os.path.join(folder, "venv")
        own = os.path.join(environment, "bin", "python")
        try:
            run([interpreter, "-m", "venv", environment])
            install(own, torch, folders)
        except StepError as error:
            return {**row, "reason": f"it could not be installed: {error}"}
        try:
            described = "import sys, torch; print(sys.version.split()[0], torch.__version__)"
            row["versions"] = " ".join(run([own, "-I", "-c", described]).split())
            compilers = inside.compilers() if inside else ["g++"]
            row["system"] = system(own, compilers)
            row["stand_ins"] = folders.stand_ins
            row["layer"] = checked(own, folder, folders.layer, *folders.ops)
            built = [checked(own, folder, "", BUILT, CXX=compiler) for compiler in compilers]
            row["built"] = {state: sum(each.get(state, 0) for each in built) for state in {*itertools.chain(*built)}}
            for compiler in compilers:
                run([own, "-I", "-c", FACADE], OPFORGE_CACHE_DIR=tempfile.mkdtemp(dir=folder), CXX=compiler)
            row["tests"] = unit_tests(own, folder, folders.tests) if folders.tests else "not run"
        except StepError as error:
            return {**row, "state": "failed", "reason": str(error)}
    return {**row, "state": "ok"}


def install(own: str, torch: str, folders: Folders) -> None:
    """Installs torch, opforge and what the tests need, for an interpreter of an environment."""
    pip = [own, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar=off"]
    options = ["--no-compile", "--no-cache-dir", "--prefer-binary"]
    if folders.stand_ins:
        run([*pip, *options, "--no-deps", f"torch=={torch}"])
        (packages,) = glob.glob(os.path.join(os.path.dirname(own), "..", "lib", "python*", "site-packages"))
        (metadata,) = glob.glob(os.path.join(packages, "torch-*.dist-info", "METADATA"))
        stand_ins.spare_requirements(metadata)
    run([*pip, *options, f"torch=={torch}", *TEST_NEEDS, folders.wheel])
    if folders.stand_ins:
        stand_ins.make(os.path.join(packages, "torch", "lib"), os.path.join(packages, "nvidia"))


_inside: list[Chroot] = []
"""The chroot in which `run` runs its commands, if there is one."""


@contextmanager
def entered(inside: Chroot | None, folder: str, folders: Folders) -> Iterator[None]:
    """Has the commands of a row run in a chroot, if there is one."""
    if inside is None:
        yield
        return
    _inside.append(inside._replace(folders=(ROOT, folder, os.path.dirname(folders.wheel), folders.layer)))
    try:
        yield
    finally:
        _inside.pop()


def system(own: str, compilers: Sequence[str]) -> str:
    """Returns the C library and the compilers that a row has."""
    glibc = run([own, "-I", "-c", "import os; print(os.confstr('CS_GNU_LIBC_VERSION'))"]).strip()
    return f"{glibc}, g++ {' and '.join(run([name, '-dumpfullversion']).strip() for name in compilers)}"


def find_interpreter(python: str) -> str:
    """Returns the path of an interpreter: this one, one on PATH, or one of pyenv's. Empty if there is none."""
    if python == HERE:
        return sys.executable
    installed = os.path.join(os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv"), "versions")
    pattern = f"{python.removesuffix('t')}.*t" if python.endswith("t") else f"{python}.*[0-9]"
    candidates = [shutil.which(f"python{python}"), *sorted(glob.glob(os.path.join(installed, pattern, "bin/python3")))]
    for candidate in filter(None, candidates):
        # A name on PATH may be one of pyenv's that leads nowhere.
        process = subprocess.run([candidate, "-c", "import venv"], capture_output=True)
        if not process.returncode:
            return candidate
    return ""


def checked(own: str, folder: str, layer: str, *names: str, **variables: str) -> dict[str, int]:
    """Checks ops by `opforge check`, those of the layer alone if there is one. Returns how many are in which state.

    Raises StepError if one is wrong, or came from elsewhere.
    """
    store = tempfile.mkdtemp(dir=folder)
    env = {"OPFORGE_CACHE_LAYERS": layer, "OPFORGE_PREBUILT": "require" if layer else "ignore", **variables}
    output = run([own, "-I", "-m", "opforge", "check", *CHECKED, *names], OPFORGE_CACHE_DIR=store, **env)
    states: dict[str, int] = {}
    for result in json.loads(output)["results"]:
        states[result["state"]] = states.get(result["state"], 0) + 1
        expected = layer or "cache"  # of the store that was empty, into which the check has built it
        if result["library"] and result["origin"] != expected:
            raise StepError(f"{result['name']} came from {result['origin']}, expected {expected}")
    return states


def unit_tests(own: str, folder: str, tests: Sequence[str]) -> str:
    """Runs a part of the unit tests. Returns pytest's last line."""
    paths = [os.path.join(ROOT, "tests", "unit", name) for name in tests]
    command = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", os.path.join(folder, "tests"), *paths]
    # In the row's own folder: ROOT belongs to others, and without byte code each child would compile all of torch.
    output = run(command, PYTHONPYCACHEPREFIX=os.path.join(folder, "bytecode"), cwd=ROOT)
    return re.sub(r" in .*", "", output.strip().splitlines()[-1].strip("= "))


def run(command: Sequence[str], cwd: str = ROOT, **env: str) -> str:
    """Runs a command. Returns its standard output. Raises StepError with the lines that say what is wrong."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPFORGE_", "PYTHON"))}
    command = _inside[-1].command(command, cwd) if _inside else command
    process = subprocess.run(command, cwd=cwd, env={**clean, **env}, capture_output=True, text=True)
    if process.returncode:
        raise StepError(wrong_ops(process.stdout) or problem(process.stdout + process.stderr))
    return process.stdout


def wrong_ops(output: str) -> str:
    """Returns what `opforge check --json` says of the ops that are wrong; empty if that is not its output."""
    try:
        results = json.loads(output)["results"]
    except (ValueError, KeyError, TypeError):
        return ""
    wrong = [result for result in results if result["state"] in ("failed", "crashed")]
    texts = [f"{row['name']} {row['state']} ({row['stage']}): {row['reason']} {row['printed']}" for row in wrong]
    return "; ".join(text.strip() for text in texts)[:MOST_TEXT]


def problem(output: str) -> str:
    """Returns the lines of a command's output that say what was wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"(ERROR|FAILED|E  |error|The user requested \(constraint\))", line)]
    telling = list(dict.fromkeys(line for line in telling if "for help visit" not in line))
    return "; ".join((telling or lines[-3:])[:4])[:MOST_TEXT]


def write(rows: Mapping[str, dict[str, Any]]) -> None:
    """Writes the file of results, and the table in the page."""
    ordered = sorted(rows.values(), key=order)
    with open(RESULTS, "w", encoding="utf-8") as file:
        json.dump(ordered, file, indent=1)
        file.write("\n")
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(f"{page.partition(BEGIN)[0]}{BEGIN}\n\n{table(ordered)}\n{END}{page.partition(END)[2]}")


def order(row: Mapping[str, Any]) -> tuple[Version, tuple[int, str]]:
    """Returns what rows are sorted by: torch, then Python."""
    minor = row["python"].partition(".")[2]
    return Version(row["torch"]), (int(minor.removesuffix("t")), minor)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the rows as a table of Markdown."""
    lines = ["| torch | Python | system | date | layer | built | unit tests |", "| -- | -- | -- | -- | -- | -- | -- |"]
    for row in rows:
        torch, python = row["torch"], row["python"]
        if "versions" in row:
            python, torch = row["versions"].split()
            torch += " (stand-ins)" if row.get("stand_ins") else ""
        cells = [counted(row.get("layer")), counted(row.get("built")), row.get("tests", "")]
        if row["state"] != "ok":
            reason = " ".join(row["reason"].split()).replace("|", "/")
            # What a test has printed is shown as it is; mdformat would escape some of it.
            reason = f"`{reason.replace('`', chr(39))}`" if row["state"] == "failed" else reason.replace("<", r"\<")
            cells = [f"{row['state']}: {reason}", "", ""]
        lines.append(f"| {' | '.join([torch, python, row.get('system', ''), row['date'], *cells])} |")
    return "\n".join(lines) + "\n"


def counted(states: Mapping[str, int] | None) -> str:
    """Returns how many ops are in which state."""
    return ", ".join(f"{count} {state}" for state, count in sorted((states or {}).items()))


if __name__ == "__main__":
    main()
