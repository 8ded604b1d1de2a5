"""Breaks the store and the machine at random while processes load ops: each load is right, or says what is wrong.

    python tests/fault/machine/faults.py --rounds 1000 --processes 8 [--seed 7] [--keep]

In each round, processes load one of five ops or run a command of `opforge cache`. Some run under limits on memory, open
files, processes or file sizes. Meanwhile files and folders of the store are replaced by anything, and get other modes
and times; as root, the disk is also full at times. No process may hang, be killed by a signal, print a traceback,
return a wrong value, or touch a file outside the store. The exit status is 1 on any violation.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))

from support import child_processes, sample_ops, text_files

OPS, MAX_SECONDS = 5, 90.0
LOAD = """
import os
from support import sample_ops
from opforge.errors import OpforgeError
try:
    op = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
    print("value", op.value())
except OpforgeError as error:
    print("error", type(error).__name__, str(error))
except MemoryError:
    print("error MemoryError")
"""
COMMANDS = (("ls",), ("stats",), ("verify",), ("gc", "--max-size", "1"), ("ls", "--json"))
LIMITS = (
    (resource.RLIMIT_NOFILE, (6, 9, 14, 30)),
    (resource.RLIMIT_FSIZE, (0, 500, 5000, 50_000)),
    (resource.RLIMIT_AS, (200 << 20, 400 << 20)),
    (resource.RLIMIT_NPROC, (1, 3, 10)),
)
"""Limits that a process may get. As root the one on processes has no effect."""
DISK_BYTES = 64 << 20


class Machine:
    """A store with its ops, files outside of it that nothing may touch, and the violations so far."""

    def __init__(self, root: str, chance: random.Random) -> None:
        self.root, self.chance = root, chance
        self.disk, self.outside = os.path.join(root, "disk"), os.path.join(root, "outside")
        self.store = os.path.join(self.disk, "store")
        os.makedirs(self.disk, mode=0o700)
        os.makedirs(os.path.join(self.outside, "folder"))
        for name in ("thesis.tmp", "manifest.json", "folder/notes.txt"):
            text_files.write(self.outside, name, "mine")
        self.before = dict(text_files.contents(self.outside))
        self.ops = [sample_ops.plain_op(self._folder(number), value=number + 1) for number in range(OPS)]
        self.count: Counter[str] = Counter()
        self.violations: list[str] = []
        options = ["mount", "-t", "tmpfs", "-o", f"mode=700,size={DISK_BYTES}", "none", self.disk]
        self.is_mounted = os.geteuid() == 0 and not subprocess.run(options, capture_output=True, check=False).returncode

    def _folder(self, number: int) -> str:
        path = os.path.join(self.root, f"op{number}")
        os.makedirs(path, exist_ok=True)
        return path

    def close(self) -> None:
        """Unmounts the disk."""
        if self.is_mounted:
            subprocess.run(["umount", "-l", self.disk], check=False)

    def round(self, processes: int) -> None:
        """Starts the processes, breaks things while they run, and checks each."""
        if self.chance.random() < 0.3:
            self._reset()
        running = [self._start() for _number in range(processes)]
        end = time.monotonic() + MAX_SECONDS
        while running and time.monotonic() < end:
            if self.chance.random() < 0.5:
                self._break()
            time.sleep(self.chance.uniform(0.01, 0.2))
            for item in [item for item in running if item[1].poll() is not None]:
                running.remove(item)
                self._check(*item)
        for _value, process, _limit in running:
            process.send_signal(signal.SIGABRT)  # faulthandler prints where it is
            _out, err = process.communicate()
            self.violations.append(f"a process hangs: {process.args}: {err}")
        if self.is_mounted:
            self._resize(DISK_BYTES)
        # Other files may appear there: a folder of the store may be a link to another disk.
        after = text_files.contents(self.outside)
        changed = [path for path, content in self.before.items() if after.get(path) != content]
        if changed:
            self.violations.append(f"files outside the store were changed: {changed}")
            self.before |= {path: after[path] for path in changed if path in after}

    def _reset(self) -> None:
        """Removes the store: otherwise it would soon be refused as a whole, and nothing else would be tested."""
        subprocess.run(["chmod", "-R", "u+rwX", self.disk], capture_output=True, check=False)
        for name in os.listdir(self.disk):
            path = os.path.join(self.disk, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

    def _start(self) -> tuple[int, subprocess.Popen[str], object]:
        """Starts a process; returns the value that it must print, 0 for a command, the process, and its limit."""
        env = {"OPFORGE_CACHE_DIR": self.store, "OPFORGE_JOBS": "2", "PYTHONFAULTHANDLER": "1"}
        limit = self.chance.choice(LIMITS) if self.chance.random() < 0.3 else None
        number = limit and self.chance.choice(limit[1])

        def restrict() -> None:
            if limit and number is not None:
                resource.setrlimit(limit[0], (number, number))

        if self.chance.random() < 0.3:
            words = ["cache", *self.chance.choice(COMMANDS)]
            code = f"import sys; sys.argv[1:] = {words!r}; from opforge.cli import main; main()"
            return 0, child_processes.start_python(code, env=env, start_new_session=True), None
        value = self.chance.randrange(OPS) + 1
        env["FOLDER"] = self._folder(value - 1)
        process = child_processes.start_python(LOAD, env=env, start_new_session=True, preexec_fn=restrict)
        return value, process, (limit, number)

    def _check(self, value: int, process: subprocess.Popen[str], limit: object) -> None:
        out, err = process.communicate()
        is_starved = not out and ("MemoryError" in err or "Too many open files" in err or "File too large" in err)
        if is_starved and "opforge/src" not in err:
            self.count["too few resources for Python itself"] += 1
        elif process.returncode < 0:
            self.violations.append(f"ended by signal {-process.returncode} with limit {limit}: {out}{err}")
        elif "Traceback" in err or (value and process.returncode):
            self.violations.append(f"exit status {process.returncode}: {out}{err}")
        elif out.startswith("value") and int(out.split()[1]) != value:
            self.violations.append(f"the op returned {out} instead of {value}")
        else:
            self.count[" ".join(out.split()[: 2 if out.startswith("error") else 1]) if value else "commands"] += 1

    def _break(self) -> None:
        """Does one thing to the store or its disk."""
        paths = [
            os.path.join(parent, name) for parent, folders, names in os.walk(self.store) for name in folders + names
        ]
        action = self.chance.choice((self._replace, self._replace, self._set_mode, self._set_time, self._fill))
        try:
            if paths:
                action(self.chance.choice(paths))
                self.count["faults"] += 1
        except OSError:
            return  # a process has just removed the path, or the disk is full

    def _replace(self, path: str) -> None:
        if os.path.join("v1", "staging", "") in path:
            return  # the private folder of a running build: the compilers write through whatever link lies there
        moved = os.path.join(self.disk, f"moved{self.chance.getrandbits(64):x}")
        os.rename(path, moved)
        kinds: tuple[Callable[[], object], ...] = (
            lambda: os.mkfifo(path),
            lambda: socket.socket(socket.AF_UNIX).bind(path),
            lambda: os.symlink("/dev/zero", path),
            lambda: os.symlink("/dev/full", path),
            lambda: os.symlink(os.path.join(self.outside, "manifest.json"), path),
            lambda: os.symlink(os.path.join(self.outside, "folder"), path),
            lambda: os.symlink(path, path),
            lambda: os.symlink(moved, path),
            lambda: os.mkdir(path),
            lambda: text_files.write("/", path, ""),
            lambda: text_files.write("/", path, "[" * 9000),
            lambda: os.truncate(text_files.write("/", path, "x"), 1 << 40),
            lambda: None,
        )
        self.chance.choice(kinds)()

    def _set_mode(self, path: str) -> None:
        if not os.path.islink(path):
            os.chmod(path, self.chance.choice((0, 0o777, 0o400, 0o666, 0o222, 0o700)))

    def _set_time(self, path: str) -> None:
        """Does what a jump of the clock does: times in the future, or long ago."""
        now = time.time() + self.chance.choice((-1e9, -1e5, 1e5, 1e9))
        os.utime(path, (now, now), follow_symlinks=False)

    def _fill(self, _path: str) -> None:
        if self.is_mounted:
            self._resize(4096 if self.chance.random() < 0.5 else DISK_BYTES)

    def _resize(self, size: int) -> None:
        used = os.statvfs(self.disk)
        size = max(size, (used.f_blocks - used.f_bfree) * used.f_frsize)
        subprocess.run(["mount", "-o", f"remount,size={size}", self.disk], capture_output=True, check=False)


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
    machine = Machine(root, random.Random(options.seed))
    print(f"seed {options.seed}, {options.rounds} rounds of {options.processes} processes, in {root}", flush=True)
    try:
        for number in range(options.rounds):
            machine.round(options.processes)
            if sys.stdout.isatty():
                print(f"\r{number + 1} of {options.rounds} rounds", end="", flush=True)
    finally:
        machine.close()
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    print(", ".join(f"{count} {name}" for name, count in sorted(machine.count.items())))
    print(f"{len(machine.violations)} violations in {time.monotonic() - began:.0f} s")
    for violation in machine.violations[:20]:
        print(f"- {violation}", file=sys.stderr)
    return 1 if machine.violations else 0


if __name__ == "__main__":
    sys.exit(main())
