"""The processes that load: one that starts anew for a load, one that looks up anew, one that keeps its builder."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

from support import child_processes
from world import World

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")

CAPBSET_DROP, DAC_OVERRIDE, DAC_READ_SEARCH = 24, 1, 2


def obey_modes() -> None:
    """Makes the program that is started obey the modes of files, even as root: a read-only store is read-only."""
    for capability in (DAC_OVERRIDE, DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(CAPBSET_DROP, capability, 0, 0, 0)


class Loader:
    """A process that answers requests; it is started at the first one."""

    def __init__(self, mutant: str = "") -> None:
        self._mutant, self._process = mutant, None
        self.answered = 0

    def ask(self, world: World, action: str, layer: str = "") -> dict:
        """Returns the answer of the process to a request for the world as it is."""
        if self._process is None:
            command = [sys.executable, SCRIPT, *([self._mutant] if self._mutant else [])]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command,
                env=child_processes.environment(),
                stdin=pipe,
                stdout=pipe,
                text=True,
                cwd=world.root,
                preexec_fn=obey_modes,
            )
        request = {
            "action": action,
            "environment": world.environment(),
            "attributes": world.declaration(),
            "folder": world.path("op"),
            "machine": world.machine,
            "clock_ahead": world.clock_ahead,
            "holder": world.holder,
            "functions": world.functions(),
            "containers": world.containers,
            "layer": layer and world.path(layer),
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self._process.wait()}")
        self.answered += 1
        return json.loads(line)

    def close(self) -> None:
        if self._process is not None:
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait()
            self._process = None
