"""Other processes: Python with a test's code, the commands of opforge, and the compilers of a build."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from support.paths import SOURCE_TREE, TESTS

IMPORT_TORCH = ("check", "report")
"""The commands that import torch."""

PYTHON = sys.executable
"""The Python of the tests. A test may have another one in `sys.executable`."""


def environment(**changes: str | None) -> dict[str, str]:
    """Returns this process's environment with `changes`, and opforge importable; None removes a variable."""
    values: dict[str, str | None] = {**os.environ, "PYTHONPATH": os.pathsep.join([SOURCE_TREE, TESTS]), **changes}
    return {name: value for name, value in values.items() if value is not None}


def start_python(code: str, python: str = PYTHON, **options: Any) -> subprocess.Popen[str]:
    """Starts another Python with `code`. The code is its whole command line: pass paths in the environment."""
    env = environment(**options.pop("env", {}))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([python, "-c", code], env=env, **{**pipes, **options})


def run_python(code: str, python: str = PYTHON, timeout: float = 120, **options: Any) -> str:
    """Runs `code` in another Python and returns what it printed; its stderr explains a failure."""
    process = start_python(code, python, **options)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"no end within {timeout} s\n{out}\n{err}") from None
    assert process.returncode == 0, f"exit status {process.returncode}\n{out}\n{err}"
    return out


def run_with_torch(
    code: str, env: Mapping[str, str | None] | None = None, timeout: float = 120, cwd: Any = None, **options: Any
) -> str:
    """Runs `code` as `run_python` does, in a process that has imported torch already: see `torch_server`.

    `options` are further ones of a `torch_server.Program`.
    """
    from support.processes import torch_server

    program = torch_server.Program(code, environment(**(env or {})), os.fspath(cwd or os.getcwd()), **options)
    with open(os.devnull) as nothing, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        status = torch_server.run(program, (nothing, out, err), timeout)
        out.seek(0)
        err.seek(0)
        printed, errors = out.read(), err.read()
    assert status is not None, f"no end within {timeout} s\n{printed}\n{errors}"
    assert status == 0, f"exit status {status}\n{printed}\n{errors}"
    return printed


def run_command(name: str, *arguments: str, **env: str | None) -> subprocess.CompletedProcess[str]:
    """Runs `build-ops`, or a command of `opforge`, as a user runs it; returns its output and exit status.

    One that imports torch is forked from a process that has it.
    """
    if name in IMPORT_TORCH:
        return run_command_with_torch(name, *arguments, **env)
    build = name == "build-ops"
    code = f"from opforge.cli import {'build_ops' if build else 'main'} as command; command()"
    words = [sys.executable, "-c", code, *(() if build else (name,)), *arguments]
    return subprocess.run(words, env=environment(**env), capture_output=True, text=True, timeout=120, check=False)


def run_command_with_torch(name: str, *arguments: str, **env: str | None) -> subprocess.CompletedProcess[str]:
    """Runs a command as `run_command` does, in a process that has imported torch already: see `forked_python`."""
    from support.processes import forked_python

    script, *words = (name, *arguments) if name == "build-ops" else ("opforge", name, *arguments)
    path = os.path.join(forked_python.commands(), script)
    return subprocess.run([path, *words], env=environment(**env), capture_output=True, text=True, timeout=120)


def matching(text: Any, but: Sequence[int] = ()) -> dict[int, str]:
    """Returns the live processes whose command line contains `text`: those of a build name its folders."""
    processes = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid() or int(name) in but:
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace")
            with open(f"/proc/{name}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if str(text) in command and state != b"Z":
            processes[int(name)] = command
    return processes


def compilers_in(folder: Any) -> dict[int, str]:
    """Returns the live processes of g++'s cc1plus that compile a source in `folder`."""
    return {pid: command for pid, command in matching(folder).items() if "cc1plus" in command.split()[0]}
