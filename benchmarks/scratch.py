"""A folder for one run of the benchmarks, child processes with an environment of their own, and the rivals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "csrc")
DEEPSPEED = "OPFORGE_BENCH_DEEPSPEED_PYTHON"
"""The variable that names a python in which DeepSpeed and torch are installed."""
LONG = "OPFORGE_BENCH_LONG"
"""The variable that asks, as --long does, for the sizes that take minutes."""
TIMEOUT = 600
"""Seconds that one child may take."""
FRESH = (
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPROFILEIMPORTTIME",
    "TORCH_EXTENSIONS_DIR",
    "DS_ACCELERATOR",
    "TRITON_CACHE_DIR",
    "TRITON_CACHE_MANAGER",
    "TRITON_INTERPRET",
)


def is_long() -> bool:
    """Whether the environment asks for a long run."""
    return os.environ.get(LONG, "") not in ("", "0")


def too_long(what: str) -> str:
    """What a report says of something that is measured in long runs alone."""
    return f"{what}: only with --long, or {LONG}=1"


class ChildError(Exception):
    """A child process failed; carries the last lines that it printed."""


class Scratch:
    """Where a run keeps its caches. Everything below `folder` is gone when the run ends."""

    def __init__(self, folder: str, long: bool = False) -> None:
        self.folder = folder
        self.long = long
        self.deepspeed = os.environ.get(DEEPSPEED, "")
        # Children start in a folder with this package in it and nothing else: beside the checkout's other folders, a
        # rival's `import accelerator` would find ours.
        self.start_folder = os.path.join(folder, "start")
        os.mkdir(self.start_folder)
        os.symlink(os.path.join(CHECKOUT, "benchmarks"), os.path.join(self.start_folder, "benchmarks"))

    def path(self, *parts: str) -> str:
        """A path below the folder; its parent exists."""
        path = os.path.join(self.folder, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def fresh(self, prefix: str) -> str:
        """A new empty folder."""
        return tempfile.mkdtemp(prefix=prefix + "-", dir=self.folder)

    @property
    def cache(self) -> str:
        """The store that the benchmarks share where they need a warm one."""
        return self.path("cache")

    @property
    def extensions(self) -> str:
        """The build folder that torch's cpp_extension keeps between the benchmarks."""
        return self.path("extensions", "")

    def environment(self, python: str = sys.executable, **more: str) -> dict[str, str]:
        """The environment of a child: no setting of ours or of Python's but `more`, and the tools beside its python."""
        kept = {
            name: value for name, value in os.environ.items() if name not in FRESH and not name.startswith("OPFORGE_")
        }
        tools = os.path.dirname(python)
        return {
            **kept,
            "PATH": tools + os.pathsep + kept.get("PATH", os.defpath),
            "OPFORGE_CACHE_DIR": self.cache,
            "TORCH_EXTENSIONS_DIR": self.extensions,
            # cpp_extension would put a compiler cache before the compiler wherever it finds one.
            "TORCH_NO_COMPILER_WRAPPER": "1",
            **more,
        }

    def child(self, module: str, *arguments: str, python: str = sys.executable, **more: str) -> dict[str, Any]:
        """Run `python -m benchmarks.MODULE` in a new process; gives the JSON object that its last line is.

        Raises ChildError.
        """
        argv = [python, "-m", f"benchmarks.{module}", *arguments]
        done = subprocess.run(
            argv,
            cwd=self.start_folder,
            env=self.environment(python, **more),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        return parse(" ".join([module, *arguments]), done.returncode, done.stdout, done.stderr)

    def start(self, module: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
        """As `child`, without waiting, and with pipes."""
        return subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", *arguments],
            cwd=self.start_folder,
            env=self.environment(**more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def seconds(self, argv: Sequence[str], **more: str) -> float:
        """The wall time of a whole command. Raises ChildError where it fails."""
        environment = self.environment(**more)
        began = time.perf_counter()
        done = subprocess.run(argv, env=environment, cwd=self.start_folder, capture_output=True, text=True, check=False)
        spent = time.perf_counter() - began
        if done.returncode:
            raise ChildError(f"{' '.join(argv)} gave {done.returncode}: {_tail(done.stderr or done.stdout)}")
        return spent

    def output(self, argv: Sequence[str], **more: str) -> str:
        """What a command prints. Raises ChildError where it fails."""
        environment = self.environment(**more)
        done = subprocess.run(argv, env=environment, cwd=self.start_folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ChildError(f"{' '.join(argv)} gave {done.returncode}: {_tail(done.stderr or done.stdout)}")
        return done.stdout.strip()

    def source(self, name: str, slope: str = "0.5f") -> str:
        """A copy of one of the small ops in csrc/ that may be edited; gives its path."""
        path = self.path("sources", name)
        if not os.path.exists(path):
            write_op(name, path, slope)
        return path

    @staticmethod
    def script(name: str) -> str:
        """The path of a command that is installed beside this python."""
        return os.path.join(os.path.dirname(sys.executable), name)

    def no_deepspeed(self) -> str | None:
        """Why DeepSpeed cannot be compared with, or None."""
        if not self.deepspeed:
            return f"DeepSpeed: set {DEEPSPEED} to a python that has deepspeed and torch"
        if not os.access(self.deepspeed, os.X_OK):
            return f"DeepSpeed: {DEEPSPEED} names {self.deepspeed}, which cannot be run"
        return None


def write_op(name: str, path: str, slope: str) -> None:
    """Write a small op of csrc/ with another constant in it."""
    with open(os.path.join(SOURCES, name), encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("SLOPE;", slope + ";"))


def parse(what: str, status: int, printed: str, problems: str) -> dict[str, Any]:
    """The JSON object in the last line of what a child printed. Raises ChildError."""
    lines = printed.strip().splitlines()
    if status or not lines:
        raise ChildError(f"{what} gave {status}: {_tail(problems or printed)}")
    try:
        found = json.loads(lines[-1])
    except ValueError as error:
        raise ChildError(f"{what} printed no JSON object last: {lines[-1]!r}") from error
    if not isinstance(found, dict):
        raise ChildError(f"{what} printed no JSON object last: {lines[-1]!r}")
    return found


def _tail(text: str, lines: int = 20) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
