"""The folder of one run, child processes with a controlled environment, and the rivals that a run needs."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "csrc")
DEEPSPEED = "OPFORGE_BENCH_DEEPSPEED_PYTHON"
"""The variable that names a Python in which DeepSpeed and torch are installed."""
LONG = "OPFORGE_BENCH_LONG"
"""The variable that requests the sizes that take minutes, as --long does."""
TIMEOUT = 600
"""Seconds that one child may take."""
REMOVED = (
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPROFILEIMPORTTIME",
    "TORCH_EXTENSIONS_DIR",
    "DS_ACCELERATOR",
    "TRITON_CACHE_DIR",
    "TRITON_CACHE_MANAGER",
    "TRITON_INTERPRET",
)
"""Variables that children do not inherit. Neither do they inherit OPFORGE_*."""


def is_long() -> bool:
    """Returns whether the environment requests a long run."""
    return os.environ.get(LONG, "") not in ("", "0")


def only_when_long(what: str) -> str:
    """Returns the text of a report for something that only a long run measures."""
    return f"{what}: only with --long, or {LONG}=1"


class ChildError(Exception):
    """A child process failed. Carries the last lines that it printed."""


class Scratch:
    """The folder in which a run keeps its caches. Everything below `folder` is deleted when the run ends."""

    def __init__(self, folder: str, long: bool = False) -> None:
        self.folder = folder
        self.long = long
        self.deepspeed = os.environ.get(DEEPSPEED, "")
        # A rival's `import accelerator` would find ours if children started in the checkout. So they start in a folder
        # that holds this package and nothing else.
        self.start_folder = os.path.join(folder, "start")
        os.mkdir(self.start_folder)
        os.symlink(os.path.join(CHECKOUT, "benchmarks"), os.path.join(self.start_folder, "benchmarks"))

    def path(self, *parts: str) -> str:
        """Returns a path below the folder. Its parent folder exists."""
        path = os.path.join(self.folder, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def new_folder(self, prefix: str) -> str:
        """Returns the path of a new empty folder."""
        return tempfile.mkdtemp(prefix=prefix + "-", dir=self.folder)

    @property
    def cache(self) -> str:
        """The store that the benchmarks share when they need a warm one."""
        return self.path("cache")

    @property
    def extensions(self) -> str:
        """The build folder of torch's cpp_extension, which the benchmarks share."""
        return self.path("extensions", "")

    def environment(self, python: str = sys.executable, **settings: str) -> dict[str, str]:
        """Returns the environment of a child process.

        It has no variable of opforge's or Python's except `settings`, and PATH begins with the folder of `python`.
        """
        inherited = {
            name: value for name, value in os.environ.items() if name not in REMOVED and not name.startswith("OPFORGE_")
        }
        tools = os.path.dirname(python)
        return {
            **inherited,
            "PATH": tools + os.pathsep + inherited.get("PATH", os.defpath),
            "OPFORGE_CACHE_DIR": self.cache,
            "TORCH_EXTENSIONS_DIR": self.extensions,
            # Otherwise cpp_extension would run the compiler through any compiler cache that it finds.
            "TORCH_NO_COMPILER_WRAPPER": "1",
            **settings,
        }

    def run_child(self, module: str, *arguments: str, python: str = sys.executable, **settings: str) -> dict[str, Any]:
        """Runs `python -m benchmarks.MODULE` in a new process. Returns the JSON object in its last line.

        Raises:
            ChildError: The process failed, or its last line is no JSON object.
        """
        process = subprocess.run(
            [python, "-m", f"benchmarks.{module}", *arguments],
            cwd=self.start_folder,
            env=self.environment(python, **settings),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        return parse_output(" ".join([module, *arguments]), process.returncode, process.stdout, process.stderr)

    def start_child(self, module: str, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        """Starts `python -m benchmarks.MODULE` with pipes, and does not wait for it."""
        return subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", *arguments],
            cwd=self.start_folder,
            env=self.environment(**settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def time_command(self, argv: Sequence[str], **settings: str) -> float:
        """Returns the wall time of a whole command, in seconds.

        Raises:
            ChildError: The command failed.
        """
        return self._run(argv, settings)[0]

    def output(self, argv: Sequence[str], **settings: str) -> str:
        """Returns what a command prints, without surrounding white space.

        Raises:
            ChildError: The command failed.
        """
        return self._run(argv, settings)[1].strip()

    def _run(self, argv: Sequence[str], settings: dict[str, str]) -> tuple[float, str]:
        environment = self.environment(**settings)
        began = time.perf_counter()
        process = subprocess.run(
            argv, env=environment, cwd=self.start_folder, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - began
        if process.returncode:
            tail = _tail(process.stderr or process.stdout)
            raise ChildError(f"{' '.join(argv)} exited with {process.returncode}: {tail}")
        return seconds, process.stdout

    def source(self, name: str, slope: str = "0.5f") -> str:
        """Returns the path of a copy of an op in csrc/, which may be edited."""
        path = self.path("sources", name)
        if not os.path.exists(path):
            write_op(name, path, slope)
        return path

    @staticmethod
    def script(name: str) -> str:
        """Returns the path of a command that is installed beside this Python."""
        return os.path.join(os.path.dirname(sys.executable), name)

    def deepspeed_problem(self) -> str | None:
        """Returns why DeepSpeed cannot be measured. None if it can."""
        if not self.deepspeed:
            return f"DeepSpeed: set {DEEPSPEED} to a python that has deepspeed and torch"
        if not os.access(self.deepspeed, os.X_OK):
            return f"DeepSpeed: {DEEPSPEED} names {self.deepspeed}, which cannot be run"
        return None


@contextmanager
def served(folder: str, requests: list[str] | None = None) -> Iterator[str]:
    """Serves a folder from this machine while the block runs, and yields its URL; `requests` gets each path."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:
            if requests is not None:
                requests.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def write_op(name: str, path: str, slope: str) -> None:
    """Writes a copy of an op in csrc/ with another constant in it."""
    with open(os.path.join(SOURCES, name), encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("SLOPE;", slope + ";"))


def parse_output(command: str, status: int, output: str, errors: str) -> dict[str, Any]:
    """Returns the JSON object in the last line of a child's output.

    Raises:
        ChildError: The status is not 0, or the last line is no JSON object.
    """
    lines = output.strip().splitlines()
    if status or not lines:
        raise ChildError(f"{command} exited with {status}: {_tail(errors or output)}")
    try:
        result = json.loads(lines[-1])
    except ValueError as error:
        raise ChildError(f"{command} printed no JSON object last: {lines[-1]!r}") from error
    if not isinstance(result, dict):
        raise ChildError(f"{command} printed no JSON object last: {lines[-1]!r}")
    return result


def _tail(text: str, lines: int = 20) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
