"""The contract of adapters of JITs: kept code is found on another machine, and an edit or a flipped byte is a miss.

Each test runs a small project of the subclass in processes of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from .contract import Contract, skip

RUN = """
import json, runpy, sys
import opforge
with opforge.warm("contract", jits=[{jit!r}]) as scope:
    result = runpy.run_path("main.py")["result"]()
name = {jit!r}
print(json.dumps([result, list(scope.compiled.get(name, ())), scope.hits.get(name, 0)]))
"""
PROCESSES, KILLED = 8, 3

FRESH = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Python takes bytecode by a source's seconds and size: after an edit within a second it would run the old one."""


class Edit(NamedTuple):
    """A change of a project, after which nothing that was compiled before may be used."""

    file: str
    before: str
    after: str


class Ran(NamedTuple):
    """The output of a process."""

    result: object
    compiled: list[str]
    hits: int


class JitContract(Contract):
    """The guarantees of every adapter, as tests.

    A subclass names the adapter, and has a project whose `main.py` defines `result()`.
    """

    jit: str
    """The name of the adapter."""
    files: Mapping[str, str]
    """The project: text by path. `main.py` defines `result()`, which compiles something and returns what JSON has."""
    edits: Mapping[str, Edit]
    """Changes after which `result()` returns something else, by what is changed: "function", "callee" in another file,
    "header", "closure" for a value that the function closes over. What a JIT does not have may be left out."""
    environment: Mapping[str, str] = {}
    """Variables of all processes."""
    keeps_path: bool = False
    """Whether a second machine needs PATH, for what is no compiler."""

    def test_what_was_compiled_is_found_by_the_next_process(self) -> None:
        """The first process compiles, the second one does not, and both have one result."""
        with self._machine() as machine:
            first, second = self._run(machine), self._run(machine)
        assert first.compiled, f"{self.jit}: the first process has compiled nothing through the adapter"
        assert not second.compiled and second.hits, f"the second process has compiled {second.compiled}"
        assert second.result == first.result, f"it has {second.result!r}, expected {first.result!r}"

    def test_another_machine_without_a_compiler_uses_a_store_to_read_alone(self) -> None:
        """It has another home and project folder, and an empty PATH. Nothing in the pages of the store is changed."""
        with self._machine() as machine:
            first = self._run(machine)
            other = os.path.join(machine, "other")
            os.makedirs(os.path.join(other, "empty"))
            self._write(os.path.join(other, "project"))
            shutil.copytree(os.path.join(machine, "store"), os.path.join(other, "store"))
            shutil.rmtree(os.path.join(machine, "project"))
            shutil.rmtree(os.path.join(machine, "home"))
            before = _modes(os.path.join(other, "store"), read_only=True)
            try:
                path = {} if self.keeps_path else {"PATH": os.path.join(other, "empty")}
                second = self._run(other, **path)
                after = _modes(os.path.join(other, "store", "v2", "jit"))
            finally:
                _modes(os.path.join(other, "store"), read_only=False)
        assert not second.compiled and second.result == first.result, f"the other machine: {second}"
        assert after == {name: mode for name, mode in before.items() if name in after}, "pages were changed"

    def test_an_edit_is_a_miss(self) -> None:
        """Also of what the function calls or closes over, and of headers: otherwise wrong results would spread."""
        with self._machine() as machine:
            first = self._run(machine)
            for what, edit in self.edits.items():
                path = os.path.join(machine, "project", edit.file)
                assert edit.before in self.files[edit.file], f"{edit.file} has no {edit.before!r}"
                with open(path, "w", encoding="utf-8") as file:
                    file.write(self.files[edit.file].replace(edit.before, edit.after))
                then = self._run(machine)
                assert then.result != first.result, f"after an edit of the {what} it is still {then.result!r}"
                self._write(os.path.join(machine, "project"))
            last = self._run(machine)
        assert not last.compiled and last.result == first.result, f"as it was before: {last}"

    def test_a_flipped_byte_is_a_miss(self) -> None:
        """One byte of each file that was kept: it is neither used, nor does the process die of it."""
        with self._machine() as machine:
            first = self._run(machine)
            for top, _folders, names in os.walk(os.path.join(machine, "store", "v2", "jit")):
                for name in names if os.path.basename(top) == "objects" else ():
                    _flip(os.path.join(top, name))
            second = self._run(machine)
        assert second.compiled and second.result == first.result, f"after a byte was flipped: {second}"

    def test_processes_that_are_killed_leave_nothing_half(self) -> None:
        """Of eight at once three are killed. The others, and one that comes later, have the result."""
        if os.name != "posix":
            skip("processes are killed by signals")
        with self._machine() as machine:
            processes = [self._start(machine) for _ in range(PROCESSES)]
            for process in processes[:KILLED]:
                process.kill()
            ended = [self._ended(process) for process in processes[KILLED:]]
            for process in processes[:KILLED]:
                process.communicate()
            last = self._run(machine)
        results = {json.dumps(one.result) for one in [*ended, last]}
        assert len(results) == 1, f"the processes have different results: {results}"
        assert not last.compiled, f"the last process has compiled {last.compiled}"

    # -- processes -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _machine(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="opforge-contract-") as folder:
            self._write(os.path.join(folder, "project"))
            yield folder

    def _write(self, project: str) -> None:
        for name, text in self.files.items():
            path = os.path.join(project, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

    def _start(self, machine: str, **variables: str) -> subprocess.Popen[str]:
        home = os.path.join(machine, "home")
        os.makedirs(home, exist_ok=True)
        own = {"HOME": home, "XDG_CACHE_HOME": os.path.join(home, "caches")}
        store = {"OPFORGE_CACHE_DIR": os.path.join(machine, "store")}
        return subprocess.Popen(
            [sys.executable, "-c", RUN.format(jit=self.jit)],
            cwd=os.path.join(machine, "project"),
            env={**os.environ, **self.environment, **own, **store, **FRESH, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _ended(self, process: subprocess.Popen[str]) -> Ran:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, f"the program of the contract ended with {process.returncode}:\n{err[-4000:]}"
        return Ran(*json.loads(out.splitlines()[-1]))

    def _run(self, machine: str, **variables: str) -> Ran:
        return self._ended(self._start(machine, **variables))


def _modes(folder: str, read_only: bool | None = None) -> dict[str, float]:
    """Returns the time of each file and folder; with `read_only` it sets or clears that first."""
    times = {}
    for top, _folders, names in os.walk(folder, topdown=read_only is not True):
        for path in (top, *(os.path.join(top, name) for name in names)):
            if read_only is not None:
                os.chmod(path, (os.stat(path).st_mode & ~0o222) if read_only else (os.stat(path).st_mode | 0o200))
            times[path] = os.stat(path).st_mtime
    return times


def _flip(path: str) -> None:
    with open(path, "r+b") as file:
        content = file.read()
        file.seek(len(content) // 2)
        file.write(bytes([content[len(content) // 2] ^ 1]) if content else b"x")
