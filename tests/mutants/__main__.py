"""Counts how many defects the tests find: `python tests/mutants`, `python tests/mutants --drawn 30`.

Each defect is put into a copy of the checkout, and tests run there until one fails: first those that reach its line, the
most pointed ones first, as `--record` has noted them with coverage. Each outcome is kept in results.tsv: the test that
found a defect is tried before all others the next time, and `--new` goes on where an earlier run has ended.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import reach
from by_hand import EDITS
from drawn import SEED, Place, draw
from reach import ROOT

RESULTS = Path(__file__).with_name("results.tsv")
COLUMNS = ("defects", "tier", "defect", "outcome", "seconds", "by")
TESTS = 120
"""How many of the tests that reach a line are run, the most pointed ones first."""
FEW = 40
"""So many tests run in one process, without the workers' start."""
SECONDS = 900


def copy_of_checkout(folder: Path) -> None:
    """Copies what git knows and what it does not ignore, with its links."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = ROOT / name, folder / name
        if os.path.lexists(source):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    metadata = ROOT / "src" / "opforge.egg-info"
    if metadata.exists():  # some versions of pip leave none behind: then that of the environment counts
        shutil.copytree(metadata, folder / "src" / metadata.name)


class Copy:
    """A copy of the checkout in which defects are tried."""

    def __init__(self, folder: Path, tier: str, seconds: float):
        self.folder, self.tier, self.limit = folder, tier, seconds
        self._failing: dict[str, bool] = {}

    def run(self, tests: Sequence[str]) -> str:
        """Runs tests until one fails; returns that one, or an empty text. One whose file is gone is left out."""
        tests = [test for test in tests if (self.folder / test.partition("::")[0]).exists()]
        if not tests:
            return ""
        path = os.pathsep.join([str(self.folder / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
        workers = () if len(tests) <= FEW and all("::" in test for test in tests) else ("-n", "2")
        tier = ("--tier", self.tier) if self.tier != "all" else ()
        options = ["-x", "-q", *workers, "-p", "no:cacheprovider", "--timeout", "120", *tier]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        with subprocess.Popen(
            command, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                output, _ = process.communicate(timeout=self.limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return f"UNKNOWN no end in {self.limit:.0f} s"
        if process.returncode in (0, 5) or "ERROR: not found:" in output:  # a test that is gone
            return ""
        lines = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return lines[0].split(" - ")[0] if lines else f"ERROR {output.strip().splitlines()[-1:]}"

    def found_by(self, place: Path, text: str, tests: Sequence[str]) -> str:
        """Puts a defect into the copy, runs tests until one fails, and returns that one.

        One that fails without the defect, too, counts for nothing.
        """
        left = list(tests)
        while left:
            sound = place.read_text()
            place.write_text(text)
            try:
                by = self.run(left)
            finally:
                place.write_text(sound)
            test = by.partition(" ")[2]
            if not by or "::" not in test:
                return by
            if test not in self._failing:
                self._failing[test] = bool(self.run([test]))
            if not self._failing[test]:
                return test
            print(f"  {test} fails without a defect, too", flush=True)
            if test not in left:  # it is of a file or a folder that was asked for
                return f"UNKNOWN {by}"
            left.remove(test)
        return ""


def changed_lines(old: str, new: str) -> list[int]:
    """Returns the numbers of the old lines that a change takes away or follows."""
    before, after = old.splitlines(), new.splitlines()
    at = next((at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    return [*range(at + 1, at + 2 + max(0, len(before) - len(after)))]


def replaced(old: str, new: str) -> Callable[[str], str]:
    """Returns what replaces a text, which must be there once."""

    def change(text: str) -> str:
        assert text.count(old) == 1, f"it is there {text.count(old)} times: {old}"
        return text.replace(old, new)

    return change


def line_replaced(place: Place) -> Callable[[str], str]:
    """Returns what replaces a line."""

    def change(content: str) -> str:
        lines = content.splitlines(keepends=True)
        return "".join([*lines[: place.line - 1], place.text, *lines[place.line :]])

    return change


def results() -> list[dict[str, str]]:
    """Returns the lines of results.tsv."""
    lines = RESULTS.read_text().splitlines()[1:] if RESULTS.exists() else []
    return [dict(zip(COLUMNS, line.split("\t"), strict=True)) for line in lines]


def keep(rows: Sequence[dict[str, str]]) -> None:
    """Writes results.tsv anew, by defect."""
    lines = ["\t".join(row[column].replace("\t", " ") for column in COLUMNS) for row in rows]
    RESULTS.write_text("\n".join(["\t".join(COLUMNS), *sorted(lines)]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="defects of by_hand.py, without any all; or what --record runs")
    parser.add_argument("--tier", default="first", choices=("first", "rest", "all"))
    parser.add_argument("--drawn", type=int, default=0, help="that many drawn defects in place of those by hand")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--below", nargs="*", default=[], help="draw from these folders alone")
    parser.add_argument("--record", action="store_true", help="note which tests reach which lines, and do nothing else")
    parser.add_argument("--new", action="store_true", help="leave out what has been found before")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the most that the tests of a defect may take")
    options = parser.parse_args()
    if options.record:
        return reach.record(options.tier, options.names)
    changes: dict[str, tuple[str, Callable[[str], str], tuple[str, ...]]] = {}
    if options.drawn:
        kind = " ".join([f"seed {options.seed}", *options.below])
        for place in draw(ROOT, options.drawn, options.seed, options.below):
            changes[place.identity] = place.path, line_replaced(place), ()
    else:
        kind = "by hand"
        for name in options.names or EDITS:
            changes[name] = EDITS[name].path, replaced(EDITS[name].old, EDITS[name].new), EDITS[name].tests
    known = {row["defect"]: row for row in results() if (row["defects"], row["tier"]) == (kind, options.tier)}
    with tempfile.TemporaryDirectory(prefix="opforge-mutants-") as scratch:
        copy = Copy(Path(scratch, "checkout"), options.tier, options.seconds)
        copy_of_checkout(copy.folder)
        for name, (path, change, named) in changes.items():
            before = known.get(name, {})
            if options.new and before.get("outcome") == "found":
                continue
            row = tried(copy, path, change, named, before.get("by", ""))
            known[name] = {**row, "defects": kind, "tier": options.tier, "defect": name}
            print(f"{row['outcome']:8} {row['seconds']:>4} s  {path}: {name}  {row['by']}", flush=True)
            # Another run may have written meanwhile.
            others = [old for old in results() if (old["defects"], old["tier"]) != (kind, options.tier)]
            keep([*others, *(known[name] for name in known if name in changes or not options.drawn)])
    outcomes = [known[name]["outcome"] for name in changes]
    print(f"{outcomes.count('found')} of {len(outcomes)} found")
    sys.exit(outcomes.count("found") < len(outcomes) and not options.drawn)


def tried(
    copy: Copy, path: str, change: Callable[[str], str], named: Sequence[str], found_before_by: str
) -> dict[str, str]:
    """Tries one defect, and returns its outcome, the processor seconds and the test that found it."""
    file = copy.folder / path
    text = file.read_text()
    new = change(text)
    reaching = reach.reaching(copy.tier, path, changed_lines(text, new), named)[:TESTS]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    by = ""
    earlier = [found_before_by] if "::" in found_before_by else []
    for group in (earlier, reaching[:FEW], reaching[FEW:], [*named]):
        by = by or (copy.found_by(file, new, group) if group else "")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    survived = "survived" if reaching or named else "reached by none"
    outcome = "unknown" if by.startswith("UNKNOWN") else "found" if by else survived
    return {"outcome": outcome, "seconds": f"{seconds:.0f}", "by": by}


if __name__ == "__main__":
    main()
