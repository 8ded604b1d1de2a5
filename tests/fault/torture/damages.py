"""Puts anything in the place of a store's files while processes use it; nothing may hang, crash or load wrongly.

    python tests/fault/torture/damages.py --rounds 1000 --processes 8 [--seed 7] [--keep]

In each round, files and folders of a store, of a layer, of a mirror and of the machine folder are replaced, get other
modes, owners or times, or lie on a disk that is almost full. Then processes run commands and load ops, some with too
few resources, while more is damaged. Each must end, without a signal and without a traceback; an op that loads must
return its value; and nothing beside the store may have changed. The exit status is 1 on any violation.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from support import child_processes, sample_ops, text_files
from support.torture.things import Damager, paths_in, remove, snapshot
from support.torture.victims import UNEXPECTED, Victim

OPS = ("Op0", "Op1", "Op2", "Op3")
MODULE = """
from opforge.builders.base import OpBuilder
"""
BUILDER = """
class {0}(OpBuilder):
    name = "{0}".lower()
    abi = "c"
    sources = ["{0}.cpp"]
"""
COMMANDS = {
    "load OP": 40,
    "build-ops torture_ops:OP": 8,
    "build-ops torture_ops:OP --out LAYER": 8,
    "ls": 5,
    "ls --json": 3,
    "cache stats": 5,
    "gc": 6,
    "verify": 6,
    "mirror cache: MIRROR?unsigned=1": 5,
    "cache explain torture_ops:OP": 6,
    "cache pin op0": 2,
    "cache unpin op0": 2,
    "rm OP": 2,
    "inspect torture_ops:OP": 5,
    "report": 1,
}
"""The commands and how often each is run."""
LIMITS = {
    "RLIMIT_NOFILE": (8, 40),
    "RLIMIT_NPROC": (0, 12),
    "RLIMIT_AS": (1 << 20, 256 << 20),
    "RLIMIT_FSIZE": (0, 40_000),
}


class Torture:
    """A store, its ops, what lies beside them, and the violations so far."""

    def __init__(self, root: str, processes: int, chance: random.Random) -> None:
        self.root, self.processes, self.chance = root, processes, chance
        self.ops, self.outside, self.disk = (os.path.join(root, name) for name in ("ops", "outside", "disk"))
        self.spare = os.path.join(root, "spare")
        self.values = dict.fromkeys(OPS, 0)
        self.count: Counter[str] = Counter()
        self.violations: list[str] = []
        self.faults: list[str] = []
        for folder in (self.ops, self.outside, self.disk, self.spare, os.path.join(root, "tmp")):
            os.mkdir(folder)
        text_files.write(self.ops, "torture_ops.py", MODULE + "".join(BUILDER.format(op) for op in OPS))
        for number, op in enumerate(OPS):
            self.change(op, 1000 * number)
        sys.path.insert(0, self.ops)
        self.use(os.path.join(root, "place"))
        self.is_small = False
        self.prepare()

    def use(self, place: str) -> None:
        """Makes `place` the folder of the store, of the layer, of the mirror and of the machine folder."""
        self.place = place
        os.environ["OPFORGE_CACHE_DIR"] = os.path.join(place, "store")
        os.environ["XDG_CACHE_HOME"] = os.path.join(place, "caches")
        os.environ["HOME"] = self.outside
        os.environ["TMPDIR"] = os.path.join(self.root, "tmp")

    def prepare(self) -> None:
        """Fills a store, a layer and a mirror, which each round can copy; and what lies outside."""
        os.makedirs(f"{self.place}/mirror", 0o700)
        out = [f"torture_ops:{op}" for op in OPS]
        for words in (["build-ops", *out], ["build-ops", *out[:2], "--out", f"{self.place}/layer"]):
            self.expect(words)
        for text in sorted(COMMANDS, key=lambda text: text.startswith("rm ")):
            self.expect(self.words(text, OPS[0]))
        for op in OPS:
            self.expect(["load", op])
        self.import_what_they_imported()
        shutil.copytree(self.place, f"{self.spare}/place", symlinks=True)
        shutil.copytree(f"{self.place}/store", f"{self.outside}/store")
        shutil.copytree(f"{self.place}/store/v2", f"{self.outside}/v2")
        for name in ("thesis.tmp", "x.1.0a1b2c3d.tmp", "bytes", "summaries", "empty"):
            text_files.write(self.outside, name, "" if name == "empty" else "years of work\n")
        files, folders = paths_in([self.outside])
        for path in (*files, *folders):
            os.utime(path, (1, 1), follow_symlinks=False)

    def import_what_they_imported(self) -> None:
        """Imports the modules that the processes have imported so far: those that are forked now import them no more.

        Otherwise a process that may open few files fails in Python's own import.
        """
        with open(f"{self.root}/tmp/modules") as file:
            names = {name for name in file.read().split() if name.split(".")[0] != "torch"}
        for name in sorted(names - set(sys.modules)):
            with suppress(Exception):  # some are imported in an order of their own
                importlib.import_module(name)

    def expect(self, words: list[str]) -> None:
        """Runs a command that must work."""
        victim = Victim(words, {"MODULES": f"{self.root}/tmp/modules"}, None, True)
        while not victim.has_ended():
            time.sleep(0.01)
        printed = victim.printed()
        victim.close()
        if victim.status:
            raise RuntimeError(f"{words} failed on an undamaged store: {printed}")

    def change(self, op: str, value: int) -> None:
        """Gives an op another value. The times of its source may go back, as after a clock was set."""
        self.values[op] = value
        path = text_files.write(self.ops, f"{op}.cpp", f"{sample_ops.EXPORT} int value() {{ return {value}; }}\n")
        if self.chance.random() < 0.5:
            os.utime(path, (0, self.chance.choice([0, 1_700_000_000, 4_102_444_800])))

    def round(self, number: int) -> None:
        """Damages the store, and runs processes on it."""
        if self.chance.random() < 0.3:
            self.renew()
        if self.chance.random() < 0.1:
            self.change(self.chance.choice(OPS), number)
        self.faults = [f"small disk {self.is_small}"]
        for _fault in range(self.chance.randrange(1, 8)):
            self.damage(is_live=False)
        before = snapshot(self.outside) | snapshot(self.ops)
        running = [self.start() for _process in range(self.processes)]
        while running:
            for victim in [*running]:
                if victim.has_ended():
                    running.remove(victim)
                    self.check(victim)
                    victim.close()
            if running and self.chance.random() < 0.01:
                self.damage(is_live=True)
            time.sleep(0.005)
        after = snapshot(self.outside) | snapshot(self.ops)
        for path in before.keys() | after.keys():
            if before.get(path) != after.get(path):
                self.violate(f"changed outside: {path}: {before.get(path)} to {after.get(path)}")

    def renew(self) -> None:
        """Takes an undamaged store, sometimes on a disk that is almost full."""
        remove(self.place)
        if self.is_small:
            subprocess.run(["umount", "-l", self.disk], check=True)
        size, inodes = self.chance.randrange(100, 1500), self.chance.randrange(40, 250)
        options = f"mode=700,size={size}k,nr_inodes={inodes}"
        words = ["mount", "-t", "tmpfs", "-o", options, "none", self.disk]
        self.is_small = self.chance.random() < 0.3 and not subprocess.run(words, capture_output=True).returncode
        self.count["almost full disks"] += self.is_small
        self.use(os.path.join(self.disk if self.is_small else self.root, "place"))
        with suppress(OSError):
            shutil.copytree(f"{self.spare}/place", self.place, symlinks=True)

    def damage(self, is_live: bool) -> None:
        """Damages one file or folder of the store, of the layer, of the mirror or of the machine folder."""
        own = [f"{self.place}/{name}" for name in ("store", "layer", "mirror", "caches/opforge")]
        files, folders = paths_in(own)
        if is_live:  # the owner of a library can run code as himself: no check helps if he swaps it after the check
            files = [path for path in files if not path.endswith((".so", ".o")) and "/staging/" not in path]
        paths = folders if folders and self.chance.random() < 0.15 and not is_live else files
        path = self.chance.choice(paths)
        with suppress(OSError):  # a full disk, or a process has removed it
            kind = Damager(self.chance, self.outside).damage(path, files, is_live)
            self.faults.append(f"{'while it was used, ' if is_live else ''}{os.path.relpath(path, self.root)}: {kind}")
            self.count["faults"] += 1

    def start(self) -> Victim:
        """Starts a process with a random command."""
        text = self.chance.choices([*COMMANDS], [*COMMANDS.values()])[0]
        op = self.chance.choice(OPS)
        words = self.words(text, op)
        limit = None
        if self.chance.random() < 0.2 and text != "report":  # it imports torch, which says what it likes
            name = self.chance.choice([*LIMITS])
            limit = (name, self.chance.randrange(*LIMITS[name]))
            self.count[f"with a {name}"] += 1
        env = {"OPFORGE_CACHE_LAYERS": f"{self.place}/layer"} if self.chance.random() < 0.3 else {}
        return Victim(words, env, limit, self.chance.random() < 0.97)

    def words(self, text: str, op: str) -> list[str]:
        """Returns the words of one of COMMANDS."""
        paths = {"OP": op, "LAYER": f"{self.place}/layer", "MIRROR": f"file://{self.place}/mirror"}
        return re.sub("OP|LAYER|MIRROR", lambda match: paths[match[0]], text).split()

    def check(self, victim: Victim) -> None:
        """Judges how a process ended."""
        printed = victim.printed()
        self.count["processes"] += 1
        if victim.is_hanging:
            self.violate("hangs", victim)
        elif victim.status is not None and victim.status < 0:
            self.violate(f"ended by signal {-victim.status}", victim)
        elif victim.status == UNEXPECTED or "Traceback (most recent call last)" in printed:
            self.violate("printed a traceback", victim)
        elif victim.status not in (0, 1, 2):
            self.violate(f"exit status {victim.status}", victim)
        elif loaded := re.search(r"^VALUE (\d+) (.*)$", printed, re.MULTILINE):
            self.count[f"loads from {'a layer' if '/' in loaded[2] else loaded[2]}"] += 1
            if int(loaded[1]) != self.values[victim.words[1]]:
                self.violate(f"the op returned {loaded[1]}, not {self.values[victim.words[1]]}", victim)
        elif refused := re.search(r"^REFUSED (\w+)", printed, re.MULTILINE):
            self.count[f"loads refused with {refused[1]}"] += 1
            if refused[1] == "CompileError":
                self.violate("the op's sources are blamed", victim)
        else:
            self.count[f"commands with status {victim.status}"] += 1

    def violate(self, what: str, victim: Victim | None = None) -> None:
        """Notes a violation."""
        if victim:
            environment = {**victim.env, "limit": victim.limit}
            what = f"{' '.join(victim.words)} {environment}: {what}\n{victim.printed()[-4000:]}"
        self.violations.append("\n  ".join([what, "after", *self.faults]))
        print(f"- {self.violations[-1]}", file=sys.stderr, flush=True)

    def settle(self) -> None:
        """Checks that no process is left, and that every op loads once the store is removed."""
        end = time.monotonic() + 5
        while (left := child_processes.matching(self.root)) and time.monotonic() < end:
            time.sleep(0.05)
        self.violations += [f"a process is left: {command}" for command in left.values()]
        self.close()
        self.use(os.path.join(self.root, "place"))
        os.makedirs(self.place, 0o700, exist_ok=True)
        for name in ("store", "caches"):
            remove(os.path.join(self.place, name))
        for op in OPS:
            self.expect(["load", op])

    def close(self) -> None:
        """Unmounts what was mounted."""
        if self.is_small:
            subprocess.run(["umount", "-l", self.disk], check=True)
            self.is_small = False


def main() -> int:
    """Runs it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("OPFORGE_")]:
        del os.environ[name]
    root, began = tempfile.mkdtemp(prefix="opforge-faults-"), time.monotonic()
    print(f"seed {options.seed}, {options.rounds} rounds with {options.processes} processes, in {root}", flush=True)
    torture = Torture(root, options.processes, random.Random(options.seed))
    try:
        for number in range(options.rounds):
            torture.round(number)
            if number % 50 == 49:
                print(f"{number + 1} rounds, {len(torture.violations)} violations", flush=True)
        torture.settle()
    finally:
        torture.close()
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    print(", ".join(f"{number} {name}" for name, number in sorted(torture.count.items())))
    print(f"{len(torture.violations)} violations in {time.monotonic() - began:.0f} s")
    return 1 if torture.violations else 0


if __name__ == "__main__":
    sys.exit(main())
