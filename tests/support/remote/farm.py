"""A farm on this machine: a real Dask scheduler, workers with a cache folder each, and the ops that they build."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import child_processes, sample_ops
from support.remote.certificates import self_signed
from support.remote.servers import HOST, free_port
from support.text_files import write

TLS = "DASK_DISTRIBUTED__COMM__TLS__"
SLOW = "#include <cstddef>\n" + "".join(
    f"template <int N> struct T{n} {{ static long f() {{ return T{n}<N - 1>::f() + N; }} }};"
    f" template <> struct T{n}<0> {{ static long f() {{ return 0; }} }};"
    f" long g{n}() {{ return T{n}<800>::f(); }}\n"
    for n in range(6)
)
"""Takes a second or two to compile."""


def ops_module(folder: Any, names: Sequence[str], text: str = "", module: str = "farm_ops") -> list[str]:
    """Writes a module of plain ops with their sources, each with `text` in it; returns the names of their builders."""
    lines = ["from opforge import OpBuilder"]
    os.makedirs(folder, exist_ok=True)
    for name in names:
        source = f"{sample_ops.EXPORT} int value() {{ return VALUE; }}\n"
        write(folder, f"{name}.cpp", f'#include "value.h"\n{text}{source}// {name}\n')
        lines.append(f"class {name.title()}Builder(OpBuilder):\n    name, sources, abi = '{name}', ['{name}.cpp'], 'c'")
    sample_ops.set_value(folder, 1)
    write(folder, f"{module}.py", "\n".join(lines) + "\n")
    return [f"{module}:{name.title()}Builder" for name in names]


class Farm:
    """A scheduler; workers are started and ended by name. `tls` is its variables for who asks, empty without TLS."""

    def __init__(self, folder: Any, has_tls: bool = False, **env: str) -> None:
        self.folder, self._scheme, self._options = folder, "tls" if has_tls else "tcp", list[str]()
        self.tls: dict[str, str] = {}
        if has_tls:
            cert, key = self_signed(Path(folder))
            self._options = ["--tls-ca-file", cert, "--tls-cert", cert, "--tls-key", key]
            self.tls = {f"{TLS}CA_FILE": cert, "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True"}
            for role in ("SCHEDULER", "WORKER", "CLIENT"):
                self.tls |= {f"{TLS}{role}__CERT": cert, f"{TLS}{role}__KEY": key}
        self._env = {**env, **self.tls}
        self.url = f"{self._scheme}://{HOST}:{free_port()}"
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def _start(self, name: str, words: Sequence[str], **env: str | None) -> None:
        output = open(os.path.join(self.folder, f"{name}.log"), "w")  # noqa: SIM115
        settings = child_processes.environment(**{**self._env, "DASK_DISTRIBUTED__DIAGNOSTICS__NVML": "False", **env})
        command = [sys.executable, "-m", "dask", *words]
        self.processes[name] = subprocess.Popen(
            command, stdout=output, stderr=output, env=settings, text=True, cwd=self.folder, start_new_session=True
        )
        output.close()

    def start_scheduler(self) -> None:
        """Starts the scheduler."""
        port = self.url.rpartition(":")[2]
        words = ["scheduler", "--host", HOST, "--port", port, "--no-dashboard", *self._options]
        self._start("scheduler", [*words, "--protocol", self._scheme])

    def start_worker(self, name: str, *options: str, cores: int = 1, **env: str | None) -> None:
        """Starts a worker that takes as many units as it has cores."""
        folder = os.path.join(self.folder, name)
        settings: dict[str, str | None] = {
            "OPFORGE_CACHE_DIR": os.path.join(folder, "cache"),
            "XDG_CACHE_HOME": os.path.join(folder, "caches"),
            "OPFORGE_LOG": os.path.join(self.folder, f"{name}.events"),
        }
        words = ["worker", self.url, "--nthreads", str(cores), "--name", name, "--no-dashboard", *self._options]
        words += ["--no-nanny", "--local-directory", folder, *options]
        self._start(name, words, **{**settings, **env})

    def wait_for_workers(self, count: int) -> list[str]:
        """Waits until so many workers are connected; returns their addresses."""
        from distributed import Client
        from distributed.security import Security

        cert, key = self.tls.get(f"{TLS}CLIENT__CERT"), self.tls.get(f"{TLS}CLIENT__KEY")
        security = Security(tls_ca_file=cert, tls_client_cert=cert, tls_client_key=key, require_encryption=bool(cert))
        with Client(self.url, timeout=60, set_as_default=False, security=security) as client:
            client.wait_for_workers(count, timeout=60)
            return [*client.nthreads()]

    def kill(self, name: str) -> None:
        """Kills a worker, as a machine that loses power would."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def events(self, *names: str, kind: str = "build") -> list[dict[str, Any]]:
        """Returns the events of these workers."""
        events = []
        for name in names:
            try:
                with open(os.path.join(self.folder, f"{name}.events"), encoding="utf-8") as file:
                    events += [json.loads(line) for line in file]
            except FileNotFoundError:
                continue
        return [event for event in events if event["event"] == kind]

    def close(self) -> None:
        """Ends every process, by its id; the workers first, which would wait for the scheduler."""
        for _name, process in sorted(self.processes.items(), key=lambda item: item[0] == "scheduler"):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def dask_farm(folder: Any, *workers: str, **settings: Any) -> Iterator[Farm]:
    """Runs a scheduler and workers until the block ends."""
    pytest.importorskip("distributed")
    with ExitStack() as stack:
        farm = Farm(folder, **settings)
        stack.callback(farm.close)
        farm.start_scheduler()
        for name in workers:
            farm.start_worker(name)
        yield farm


def build_ops(farm: str, *arguments: str, folder: Any, **env: str | None) -> subprocess.CompletedProcess[str]:
    """Runs `build-ops --on` in the folder of the ops."""
    code = "from opforge.cli import build_ops as command; command()"
    words = [sys.executable, "-c", code, *arguments, "--on", farm]
    settings = child_processes.environment(**env)
    return subprocess.run(words, env=settings, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
