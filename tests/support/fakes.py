"""What the tests put in place of the real thing, written once: a disk and a clock, a compiler, ops, other processes."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from support.paths import TESTS

import opforge
from opforge.cache.filesystem.disk import ABSENT, Disk, Stamp

SECOND = 1_000_000_000
_numbers = itertools.count()


class FakeDisk(Disk):
    """Files with stamps that the test chooses, and a clock that only the test moves. Counts what was hashed."""

    def __init__(self, now: int = 1_000 * SECOND) -> None:
        self.now = now
        self.files: dict[str, bytes | None] = {}
        self.stamps: dict[str, Stamp] = {}
        self.hashed: list[str] = []
        self._inodes = itertools.count(10)

    def write(self, path: str, content: str, at: int | None = None, **stamp: int) -> None:
        """Put a file there, modified at `at`; any part of its stamp can be given. A new name touches its folder."""
        moment = self.now if at is None else at
        old = self.stamps.get(path)
        fresh = Stamp(len(content), moment, moment, old.inode if old else next(self._inodes))
        self.files[path] = content.encode()
        self.stamps[path] = fresh._replace(**stamp)
        if old is None:
            self.touch_folder(os.path.dirname(path), moment)

    def touch_folder(self, path: str, at: int | None = None) -> None:
        moment = self.now if at is None else at
        inode = self.stamps[path].inode if path in self.stamps else next(self._inodes)
        self.files[path] = None
        self.stamps[path] = Stamp(4096, moment, moment, inode)

    def remove(self, path: str) -> None:
        del self.files[path], self.stamps[path]
        self.touch_folder(os.path.dirname(path))

    def stamp(self, path: str) -> Stamp | None:
        return self.stamps.get(os.path.normpath(path))

    def flat_stamps(self, paths: Iterable[str]) -> list[int]:
        return [number for path in paths for number in self.stamp(path) or ABSENT]

    def digest(self, path: str) -> str | None:
        self.hashed.append(path)
        content = self.files.get(os.path.normpath(path))
        return None if content is None else hashlib.sha256(content).hexdigest()

    def exists(self, path: str) -> bool:
        return os.path.normpath(path) in self.files

    def names(self, folder: str) -> frozenset[str]:
        base = os.path.normpath(folder).rstrip("/") + "/"
        return frozenset(path[len(base) :].partition("/")[0] for path in self.files if path.startswith(base))

    def now_ns(self) -> int:
        return self.now


def sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def compiler(folder: Any, name: str = "g++", body: str = "exit 0") -> str:
    """A program that stands for a compiler: a shell script with `body`."""
    path = os.path.join(str(folder), name)
    with open(path, "w") as file:
        file.write(f"#!/bin/sh\n{body}\n")
    os.chmod(path, 0o755)
    return path


ANSWERS = """\
case "$*" in
  *--version*) echo "g++ (Fake) @VERSION@";;
  *-dumpmachine*) echo $(uname -m)-linux-gnu;;
  *-print-prog-name=*) n="${*##*=}"; p="$COMPILER_PATH/$n"; if [ -x "$p" ]; then echo "$p"; else echo "$n"; fi;;
  *-v*) printf '#include <...> search starts here:\\n /usr/include\\nEnd of search list.\\n' >&2;;
esac
"""


def answering_compiler(folder: Any, name: str = "g++", version: str = "12.2") -> str:
    """A compiler that answers questions about itself and compiles nothing."""
    os.makedirs(folder, exist_ok=True)
    return compiler(folder, name, ANSWERS.replace("@VERSION@", version))


class LaterDisk(Disk):
    """The real disk, whose clock is ahead: what a test has just written is of age already."""

    def now_ns(self) -> int:
        return super().now_ns() + 10 * SECOND


# -- ops ---------------------------------------------------------------------------------------------------------------


def fresh(stem: str = "op") -> str:
    """A name that no op in this process has: what torch has registered stays until the process ends."""
    return f"{stem}_{os.getpid()}_{next(_numbers)}"


STABLE = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
Tensor relu(const Tensor& x) {
  STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "relu: float32 expected");
  Tensor y = torch::stable::empty_like(x);
  const float* from = static_cast<const float*>(x.const_data_ptr());
  float* to = static_cast<float*>(y.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] > 0 ? from[i] : 0;
  return y;
}
STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("relu(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CPU, m) { m.impl("relu", TORCH_BOX(&relu)); }
"""
EXPORT = 'extern "C" __attribute__((visibility("default")))'
PLAIN = f"""\
#include "value.h"
{EXPORT} int value() {{ return VALUE; }}
"""
GATED = f"""\
#include "value.h"
#include "gate.h"
{EXPORT} int value() {{ return VALUE; }}
"""
"""A source whose compiler stands still while the gate is closed, without using the processor."""


def close_gate(folder: Any) -> None:
    """From now on a compiler of GATED waits in `#include "gate.h"`, which is a pipe that nobody writes to."""
    path = os.path.join(str(folder), "gate.h")
    if os.path.lexists(path):
        os.unlink(path)
    os.mkfifo(path)


def open_gate(folder: Any, text: str = "// open\n") -> None:
    """Let the compilers that wait go on, and those to come pass."""
    path = os.path.join(str(folder), "gate.h")
    # Open for both ends, so that whoever comes to the pipe now finds a writer, and in one step something else later.
    handle = os.open(path, os.O_RDWR)
    os.replace(write(folder, "gate.h.new", text), path)
    os.write(handle, text.encode())
    os.close(handle)


def compilers(folder: Any) -> dict[int, str]:
    """The compilers proper that are at work on a source in `folder`."""
    return {pid: command for pid, command in processes_about(folder).items() if "cc1plus" in command.split()[0]}


def builder_class(folder: Any, name: str, **attributes: Any) -> Any:
    """An OpBuilder subclass that was, to all appearances, defined in a module inside `folder`."""
    from opforge.builders.base import OpBuilder

    module = types.ModuleType(fresh("module"))
    module.__file__ = os.path.join(str(folder), "ops.py")
    sys.modules[module.__name__] = module
    attributes = {"sources": [f"{name}.cpp"], **attributes}
    return type("TestedBuilder", (OpBuilder,), {"__module__": module.__name__, "name": name, **attributes})


def stable_op(folder: Any, name: str = "", **attributes: Any) -> Any:
    """A builder class of a relu on the stable ABI, with a namespace of its own; its source is written to `folder`."""
    name = name or fresh("relu")
    os.makedirs(folder, exist_ok=True)
    write(folder, f"{name}.cpp", STABLE.replace("@NAME@", name))
    return builder_class(folder, name, **attributes)


def plain_op(folder: Any, name: str = "plain", value: int = 1, source: str = PLAIN, **attributes: Any) -> Any:
    """A builder class of a plain-C op whose function `value()` gives back what `value.h` says. Needs no torch."""
    os.makedirs(folder, exist_ok=True)
    write(folder, f"{name}.cpp", source)
    set_value(folder, value)
    return builder_class(folder, name, abi="c", **attributes)


def set_value(folder: Any, value: int) -> None:
    write(folder, "value.h", f"#define VALUE {value}\n")


def write(folder: Any, name: str, text: str) -> str:
    path = os.path.join(str(folder), name)
    with open(path, "w") as file:
        file.write(text)
    return path


# -- other processes ---------------------------------------------------------------------------------------------------

SOURCE_TREE = os.path.dirname(os.path.dirname(os.path.abspath(opforge.__file__)))


def environment(**changes: str | None) -> dict[str, str]:
    """This process's environment with `changes`, and opforge importable; None removes a variable."""
    values: dict[str, str | None] = {**os.environ, "PYTHONPATH": os.pathsep.join([SOURCE_TREE, TESTS]), **changes}
    return {name: value for name, value in values.items() if value is not None}


def start(code: str, **options: Any) -> subprocess.Popen[str]:
    """Start another Python with `code`. The code is all that its command line holds: paths go by the environment."""
    env = environment(**options.pop("env", {}))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], env=env, **{**pipes, **options})


def python(code: str, timeout: float = 120, **options: Any) -> str:
    """Run `code` in another Python and give back what it printed; what it wrote to stderr explains a failure."""
    process = start(code, **options)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"no end within {timeout} s\n{out}\n{err}") from None
    assert process.returncode == 0, f"exit status {process.returncode}\n{out}\n{err}"
    return out


def command(name: str, *arguments: str, **env: str | None) -> subprocess.CompletedProcess[str]:
    """What `build-ops`, or a command of `opforge`, says and ends with, run as a user runs it."""
    build = name == "build-ops"
    code = f"from opforge.cli import {'build_ops' if build else 'main'} as command; command()"
    words = [sys.executable, "-c", code, *(() if build else (name,)), *arguments]
    return subprocess.run(words, env=environment(**env), capture_output=True, text=True, timeout=120, check=False)


def processes_about(text: Any, but: Sequence[int] = ()) -> dict[int, str]:
    """The live processes whose command line holds `text`: a build's ninja and compilers name its folders."""
    found = {}
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
            found[int(name)] = command
    return found


def wait_for(what: Callable[[], Any], seconds: float = 30, reason: str = "") -> Any:
    """What `what` gives back as soon as it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s in vain{': ' + reason if reason else ''}")


def tree(root: Any, *skip: str) -> Mapping[str, list[str]]:
    """Every folder below `root` with the files in it."""
    return {os.path.relpath(at, root): sorted(files) for at, _folders, files in os.walk(root)}
