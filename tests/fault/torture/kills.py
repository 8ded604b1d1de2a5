"""Kills builders and corrupts their store, many times; then every op must load and compute, and nothing may be left.

    python tests/fault/torture/kills.py --kills 1000 --processes 16 [--seed 7] [--keep]

Each round runs processes that load one of five ops, whose sources change at random, and kills most of them at a random
moment. Between rounds, files of the store are damaged at random. A process that is not killed must print a value that
its op had while it ran. The exit status is 1 on any violation.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from support import child_processes, sample_ops, text_files

from opforge.cache import staging
from opforge.cache.layout import Layout
from opforge.cache.maintenance import gc, unneeded, verify
from opforge.foundation import file_owners

OPS = 5
MAX_SECONDS = 90.0
"""Seconds after which a process that has not ended counts as hanging."""
MIN_CHANGE_SECONDS = 1.0
"""Seconds between two changes of a source: one that changes all the time cannot be built."""
LOAD = """
import os
from support import sample_ops
op = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c", sources=["plain.cpp", "more.cpp"])().load()
print(op.value(), op.origin)
"""
MORE = '#include "value.h"\nint more() { return VALUE; }\n'
SOURCE = f'#include "value.h"\nint more();\n{sample_ops.EXPORT} int value() {{ return VALUE + more(); }}\n'
AREAS = ("entries", "plans", "objects", "toolchains", "descriptions", "peaks", "locks", "failures")


class Op:
    """An op in its own folder, and every value that it has had, with its time."""

    def __init__(self, folder: str) -> None:
        self.folder, self.history = folder, list[tuple[float, int]]()
        os.makedirs(folder)
        text_files.write(folder, "plain.cpp", SOURCE)
        text_files.write(folder, "more.cpp", MORE)
        self.change(1)

    def change(self, value: int) -> None:
        """Gives the op another value, at once for every reader."""
        self.history.append((time.monotonic(), value))
        text_files.write(self.folder, ".value.h", f"#define VALUE {value}\n")
        os.replace(os.path.join(self.folder, ".value.h"), os.path.join(self.folder, "value.h"))

    def values(self, began: float) -> set[int]:
        """Returns what value() may have returned in a process that began then and has just ended."""
        before = [value for changed, value in self.history if changed <= began]
        return {2 * value for value in [*before[-1:], *(value for changed, value in self.history if changed > began)]}


class Loader:
    """A process that loads an op. It is killed at `kill_time`, or left alone if that is None."""

    def __init__(self, op: Op, store: str, kill_time: float | None) -> None:
        self.op, self.began, self.kill_time = op, time.monotonic(), kill_time
        env = {"FOLDER": op.folder, "OPFORGE_CACHE_DIR": store, "OPFORGE_JOBS": "2"}
        self.process = child_processes.start_python(LOAD, env=env, start_new_session=True)


class Torture:
    """A store, its ops, and the violations so far."""

    def __init__(self, root: str, processes: int, chance: random.Random) -> None:
        self.root, self.processes, self.chance = root, processes, chance
        self.store = os.path.join(root, "store")
        self.ops = [Op(os.path.join(root, f"op{number}")) for number in range(OPS)]
        self.count: Counter[str] = Counter()
        self.violations: list[str] = []

    def round(self, kills: int) -> None:
        """Starts and kills processes until `kills` were killed; then waits for the others."""
        running: list[Loader] = []
        killed = 0
        while killed < kills or running:
            if killed < kills and len(running) < self.processes:
                delay = self.chance.uniform(0.05, 0.8) if self.chance.random() < 0.75 else None
                kill_time = None if delay is None else time.monotonic() + delay
                op = self.chance.choice(self.ops)
                if self.chance.random() < 0.3 and time.monotonic() - op.history[-1][0] > MIN_CHANGE_SECONDS:
                    op.change(self.chance.randrange(1, 1000))
                    self.count["changes"] += 1
                running.append(Loader(op, self.store, kill_time))
            for loader in [*running]:
                if loader.process.poll() is not None:
                    running.remove(loader)
                    self._check(loader)
                elif loader.kill_time and time.monotonic() >= loader.kill_time:
                    self._kill(loader)
                    running.remove(loader)
                    killed += 1
                elif time.monotonic() - loader.began > MAX_SECONDS:
                    self.violations.append(f"a process hangs: {loader.op.folder}")
                    self._kill(loader)
                    running.remove(loader)
            time.sleep(0.01)

    def _kill(self, loader: Loader) -> None:
        if self.chance.random() < 0.2:
            os.killpg(loader.process.pid, signal.SIGKILL)
        else:
            loader.process.kill()
        loader.process.communicate()
        self.count["kills"] += 1

    def _check(self, loader: Loader) -> str:
        out, err = loader.process.communicate()
        value, _, origin = out.strip().partition(" ")
        self.count["loads"] += 1
        self.count[origin] += 1
        if "UnstableInputError" in err and loader.op.history[-1][0] > loader.began:
            self.count["gave up on a source that kept changing"] += 1
        elif loader.process.returncode:
            self.violations.append(f"exit status {loader.process.returncode}: {out}{err}")
        elif int(value) not in loader.op.values(loader.began):
            self.violations.append(f"{loader.op.folder} returned {value}, not one of {loader.op.values(loader.began)}")
        return origin

    def corrupt(self) -> None:
        """Damages a few files of the store. No process uses it meanwhile."""
        for _number in range(self.chance.randrange(1, 8)):
            top = os.path.join(self.store, "v2", self.chance.choice(AREAS))
            files = [os.path.join(parent, name) for parent, _folders, names in os.walk(top) for name in names]
            if files:  # mostly the newest, which are the ones in use
                files.sort(key=lambda path: (-os.lstat(path).st_mtime_ns, path))
                self._damage(files[int(len(files) * self.chance.random() ** 3)])
                self.count["damages"] += 1

    def _damage(self, path: str) -> None:
        with open(path, "rb") as file:
            content = bytearray(file.read())
        kind = self.chance.randrange(7)
        if kind == 0:
            os.unlink(path)
            return
        if kind == 1:
            shutil.rmtree(os.path.dirname(path))
            return
        position = self.chance.randrange(len(content) + 1)
        if kind == 2:
            content = content[:position]
        elif kind == 3:
            content = bytearray(len(content))
        elif kind == 4:
            content += self.chance.randbytes(20)
        elif content:  # one bit: the file is likely to be still readable
            content[position % len(content)] ^= 1 << self.chance.randrange(8)
        os.chmod(path, 0o600)
        with open(path, "wb") as file:
            file.write(content)
        if path.endswith(".so"):
            os.chmod(path, 0o500)

    def settle(self) -> None:
        """Checks that every op loads and computes, twice, and that the killed processes left nothing."""
        for origin in (None, "cache"):
            for op in self.ops:
                loader = Loader(op, self.store, None)
                loader.process.wait(MAX_SECONDS)
                actual = self._check(loader)
                if origin and actual != origin:
                    self.violations.append(f"{op.folder} was {actual} although it had just been loaded")
        end = time.monotonic() + 5
        while (left := child_processes.matching(self.root)) and time.monotonic() < end:
            time.sleep(0.05)
        self.violations += [f"a process is left: {command}" for command in left.values()]
        layout = Layout(self.store)
        swept = staging.sweep(layout)
        self.violations += [f"staging holds {name} after a sweep" for name in os.listdir(layout.path("staging"))]
        tomorrow = time.time() + unneeded.DAY
        self.count["garbage"] = swept + len(gc.remove(layout, gc.over_limit(layout, tomorrow)))
        for parent, _folders, names in os.walk(self.store):
            self.violations += [f"a temporary file is left: {parent}/{name}" for name in names if name.endswith(".tmp")]
        for entry in verify.verify(layout, file_owners.trusted_ids()):
            self.count["entries"] += 1
            self.count["damaged entries that were not needed"] += bool(entry.problem)


def main() -> int:
    """Runs it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    options = parser.parse_args()
    root, began = tempfile.mkdtemp(prefix="opforge-torture-"), time.monotonic()
    for name in [name for name in os.environ if name.startswith("OPFORGE_")]:
        del os.environ[name]
    logging.getLogger("opforge").setLevel(logging.ERROR)  # damaged entries are counted at the end
    torture = Torture(root, options.processes, random.Random(options.seed))
    print(f"seed {options.seed}, {options.kills} kills by {options.processes} processes, in {root}", flush=True)
    try:
        while (left := options.kills - torture.count["kills"]) > 0:
            torture.round(min(left, max(5, options.kills // 100)))
            torture.corrupt()
            if sys.stdout.isatty():
                print(f"\r{torture.count['kills']} of {options.kills} kills", end="", flush=True)
        torture.settle()
    finally:
        if not options.keep and not torture.violations:
            shutil.rmtree(root, ignore_errors=True)
    print(", ".join(f"{number} {name}" for name, number in torture.count.items() if name and number))
    print(f"{len(torture.violations)} violations in {time.monotonic() - began:.0f} s")
    for violation in torture.violations[:20]:
        print(f"- {violation}", file=sys.stderr)
    return 1 if torture.violations else 0


if __name__ == "__main__":
    sys.exit(main())
