"""Kills builders and corrupts their store, at length; then every op loads and computes right, and nothing is left.

    python tests/fault/torture.py --kills 1000 --processes 16 [--seed 7] [--keep]

Each round runs processes that load one of a handful of ops, whose sources change now and then, and kills most of them
at a random moment. Between rounds, files of the store are damaged at random. A process that is not killed must print
the value that its op had at some moment of its life. The exit status is 1 on any violation.
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

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support import child_processes, sample_ops, text_files

from opforge.cache import staging
from opforge.cache.filesystem import trust
from opforge.cache.layout import Layout
from opforge.cache.maintenance import gc, verify

OPS = 5
LONGEST = 90.0
"""Seconds after which a process that has not ended counts as hanging."""
STEADY = 1.0
"""Seconds for which a source stays as it is: one that changes all the time cannot be built."""
LOAD = """
import os
from support import sample_ops
op = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c", sources=["plain.cpp", "more.cpp"])().load()
print(op.value(), op.origin)
"""
MORE = '#include "value.h"\nint more() { return VALUE; }\n'
SOURCE = f'#include "value.h"\nint more();\n{sample_ops.EXPORT} int value() {{ return VALUE + more(); }}\n'
AREAS = ("entries", "plans", "answers", "objects", "toolchains", "descriptions", "peaks", "locks", "failures")


class Op:
    """An op in a folder of its own, and every value that it has had."""

    def __init__(self, folder: str) -> None:
        self.folder, self.history = folder, list[tuple[float, int]]()
        os.makedirs(folder)
        text_files.write(folder, "plain.cpp", SOURCE)
        text_files.write(folder, "more.cpp", MORE)
        self.change(1)

    def change(self, value: int) -> None:
        """Give the op another value, at once for every reader."""
        self.history.append((time.monotonic(), value))
        text_files.write(self.folder, ".value.h", f"#define VALUE {value}\n")
        os.replace(os.path.join(self.folder, ".value.h"), os.path.join(self.folder, "value.h"))

    def values(self, began: float) -> set[int]:
        """What value() may have given to a process that began then and has just ended."""
        before = [value for at, value in self.history if at <= began]
        return {2 * value for value in [*before[-1:], *(value for at, value in self.history if at > began)]}


class Loader:
    """A process that loads an op. `doom` is when it is to be killed; None: it is left to end."""

    def __init__(self, op: Op, store: str, doom: float | None) -> None:
        self.op, self.began, self.doom = op, time.monotonic(), doom
        env = {"FOLDER": op.folder, "OPFORGE_CACHE_DIR": store, "OPFORGE_JOBS": "2"}
        self.process = child_processes.start_python(LOAD, env=env, start_new_session=True)


class Torture:
    """A store, its ops, and what has gone wrong so far."""

    def __init__(self, root: str, processes: int, chance: random.Random) -> None:
        self.root, self.processes, self.chance = root, processes, chance
        self.store = os.path.join(root, "store")
        self.ops = [Op(os.path.join(root, f"op{number}")) for number in range(OPS)]
        self.count: Counter[str] = Counter()
        self.violations: list[str] = []

    def round(self, kills: int) -> None:
        """Start and kill until `kills` processes were killed; then wait for the others."""
        running: list[Loader] = []
        killed = 0
        while killed < kills or running:
            if killed < kills and len(running) < self.processes:
                doom = time.monotonic() + self.chance.uniform(0.05, 0.8) if self.chance.random() < 0.75 else None
                op = self.chance.choice(self.ops)
                if self.chance.random() < 0.3 and time.monotonic() - op.history[-1][0] > STEADY:
                    op.change(self.chance.randrange(1, 1000))
                    self.count["changes"] += 1
                running.append(Loader(op, self.store, doom))
            for loader in [*running]:
                if loader.process.poll() is not None:
                    running.remove(loader)
                    self._judge(loader)
                elif loader.doom and time.monotonic() >= loader.doom:
                    self._kill(loader)
                    running.remove(loader)
                    killed += 1
                elif time.monotonic() - loader.began > LONGEST:
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

    def _judge(self, loader: Loader) -> str:
        out, err = loader.process.communicate()
        value, _, origin = out.strip().partition(" ")
        self.count["loads"] += 1
        self.count[origin] += 1
        if "UnstableInputError" in err and loader.op.history[-1][0] > loader.began:
            self.count["gave up on a source that kept changing"] += 1
        elif loader.process.returncode:
            self.violations.append(f"exit status {loader.process.returncode}: {out}{err}")
        elif int(value) not in loader.op.values(loader.began):
            self.violations.append(f"{loader.op.folder} gave {value}, not one of {loader.op.values(loader.began)}")
        return origin

    def corrupt(self) -> None:
        """Damage a few files of the store; nobody is at work meanwhile."""
        for _time in range(self.chance.randrange(1, 8)):
            top = os.path.join(self.store, "v1", self.chance.choice(AREAS))
            files = [os.path.join(at, name) for at, _folders, names in os.walk(top) for name in names]
            if files:  # rather the newest, which are the ones in use
                files.sort(key=lambda path: (-os.lstat(path).st_mtime_ns, path))
                self._damage(files[int(len(files) * self.chance.random() ** 3)])
                self.count["damages"] += 1

    def _damage(self, path: str) -> None:
        with open(path, "rb") as file:
            content = bytearray(file.read())
        harm = self.chance.randrange(7)
        if harm == 0:
            os.unlink(path)
            return
        if harm == 1:
            shutil.rmtree(os.path.dirname(path))
            return
        at = self.chance.randrange(len(content) + 1)
        if harm == 2:
            content = content[:at]
        elif harm == 3:
            content = bytearray(len(content))
        elif harm == 4:
            content += self.chance.randbytes(20)
        elif content:  # one bit, the likeliest to leave a file that still reads well
            content[at % len(content)] ^= 1 << self.chance.randrange(8)
        os.chmod(path, 0o600)
        with open(path, "wb") as file:
            file.write(content)
        if path.endswith(".so"):
            os.chmod(path, 0o500)

    def settle(self) -> None:
        """Every op loads and computes right, twice; and nothing of what was killed is left."""
        for origin in (None, "cache"):
            for op in self.ops:
                loader = Loader(op, self.store, None)
                loader.process.wait(LONGEST)
                found = self._judge(loader)
                if origin and found != origin:
                    self.violations.append(f"{op.folder} was {found} although it had just been loaded")
        end = time.monotonic() + 5
        while (left := child_processes.matching(self.root)) and time.monotonic() < end:
            time.sleep(0.05)
        self.violations += [f"a process is left: {command}" for command in left.values()]
        layout = Layout(self.store)
        swept = staging.sweep(layout)
        left_in_staging = os.listdir(layout.path("staging"))
        self.violations += [f"staging holds {name} after a sweep" for name in left_in_staging]
        tomorrow = time.time() + gc.DAY
        self.count["leftovers"] = swept + len(gc.remove(layout, gc.over_limit(layout, tomorrow)))
        for at, _folders, names in os.walk(self.store):
            self.violations += [f"a temporary file is left: {at}/{name}" for name in names if name.endswith(".tmp")]
        for one in verify.verify(layout, trust.trusted_ids()):
            self.count["entries"] += 1
            self.count["damaged entries that nobody needed"] += bool(one.problem)


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="leave the folder for a look at it")
    asked = parser.parse_args()
    root, began = tempfile.mkdtemp(prefix="opforge-torture-"), time.monotonic()
    for name in [one for one in os.environ if one.startswith("OPFORGE_")]:
        del os.environ[name]
    logging.getLogger("opforge").setLevel(logging.ERROR)  # what is found damaged at the end is counted
    torture = Torture(root, asked.processes, random.Random(asked.seed))
    print(f"seed {asked.seed}, {asked.kills} kills by {asked.processes} processes, in {root}", flush=True)
    try:
        while (left := asked.kills - torture.count["kills"]) > 0:
            torture.round(min(left, max(5, asked.kills // 100)))
            torture.corrupt()
            if sys.stdout.isatty():
                print(f"\r{torture.count['kills']} of {asked.kills} kills", end="", flush=True)
        torture.settle()
    finally:
        if not asked.keep and not torture.violations:
            shutil.rmtree(root, ignore_errors=True)
    print(", ".join(f"{number} {name}" for name, number in torture.count.items() if name and number))
    print(f"{len(torture.violations)} violations in {time.monotonic() - began:.0f} s")
    for one in torture.violations[:20]:
        print(f"- {one}", file=sys.stderr)
    return 1 if torture.violations else 0


if __name__ == "__main__":
    sys.exit(main())
