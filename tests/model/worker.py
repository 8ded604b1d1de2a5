"""A process that loads the op: reads a request, a line of JSON, and writes a line with what the op's functions return.

python tests/model/worker.py [MUTANT]
"""

from __future__ import annotations

import collections
import ctypes
import json
import os
import sys
import time
import types

FUNCTIONS = ("value", "linked", "part", "embedded")
CONTAINERS = {
    "user's": {dict: collections.UserDict, list: collections.UserList},
    "other": {dict: collections.OrderedDict, list: collections.deque},
}
"""The classes of containers that are no plain ones."""
SIGNATURES = {name: (ctypes.c_char_p, []) for name in FUNCTIONS}


class Worker:
    """The state of the process: the builder that it keeps, and the clock of its disk."""

    def __init__(self) -> None:
        from opforge.builders import base
        from opforge.cache.filesystem.disk import Disk

        self.ahead_ns, real = 0, Disk.now_ns
        Disk.now_ns = lambda disk: real(disk) + self.ahead_ns  # type: ignore[method-assign]
        self.requests = 0
        base.time = types.SimpleNamespace(
            # Otherwise a process that keeps its builder would trust no file of the last two seconds.
            time_ns=lambda: time.time_ns() + self.ahead_ns,
            # More than a second between two requests: the compiler is compared at each of them.
            monotonic=lambda: time.monotonic() + 2 * self.requests,
        )
        self.findings: list[str] = []
        self.asked_for: list[tuple[str, str]] = []
        self.observe_builds()
        self.kind = type("Model", (base.OpBuilder,), {"name": "op", "abi": "c", "signatures": SIGNATURES})
        self.builder = self.kind()

    def observe_builds(self) -> None:
        """Observes each build: what it asked for is in the answer, and what opforge did not record of it."""
        from support.compilers.observed_loads import observed
        from support.observer import compare, reader

        from opforge.builders.run import planned_build

        def judge(build):
            outcome, observation = compare.compare(build), build.observation
            self.findings += [str(finding) for finding in outcome.findings]
            kinds = (("read", observation.read), ("looked for", observation.paths(reader.ABSENT)))
            paths = [(kind, path) for kind, names in kinds for path in sorted(reader.plain(names))]
            own = build.folder + "/"
            self.asked_for = [
                (kind, path) for kind, path in paths if not (path in outcome.excused or path.startswith(own))
            ]

        planned_build.execute = observed(planned_build.execute, judge)

    def answer(self, request: dict) -> dict:
        """Loads, builds or fills a layer as the request says."""
        from opforge.builders.declaration.kernel_roots import KernelRoot
        from opforge.errors import OpforgeError
        from opforge.foundation import remembered_values

        self.requests += 1
        self.findings.clear()
        self.asked_for = []
        os.environ.clear()
        os.environ.update(request["environment"])
        self.ahead_ns = 10**10 if request["clock_ahead"] else 0
        attributes = request["attributes"]
        attributes["kernel_roots"] = [KernelRoot(name, path) for name, path in attributes["kernel_roots"]]
        for name, value in attributes.items():
            self.declare(name, value, request["holder"], request["containers"])
        self.kind.folder = request["folder"]
        self.kind.signatures = {name: SIGNATURES[name] for name in request["functions"]}
        if request["action"] != "held":
            self.reset()
            self.builder = self.kind()
        remembered_values._machine_id = request["machine"]
        try:
            if request["layer"]:
                return self.fill(request["layer"])
            if request["action"] == "force":
                self.builder.build(force=True)
            op = self.builder.load()
        except OpforgeError as error:
            return {"error": type(error).__name__, "text": str(error)}
        values = {name: getattr(op, name)().decode().rstrip("\n") for name in FUNCTIONS if name in dir(op)}
        return {
            "values": values,
            "origin": op.__entry__.origin,
            "key": op.__entry__.key,
            "findings": self.findings,
            "asked_for": self.asked_for,
        }

    def declare(self, name: str, value: object, holder: str, containers: str) -> None:
        """Sets an attribute on the builder's class or on that of all builders, in a container of a chosen class.

        A container that is of that class already is changed in place.
        """
        from opforge.builders.base import OpBuilder

        is_held = name in ("define_macros", "extra_compile_args")
        kind = OpBuilder if holder == "base" and is_held else self.kind
        other = self.kind if kind is OpBuilder else OpBuilder
        if is_held and other is OpBuilder:
            OpBuilder.define_macros, OpBuilder.extra_compile_args = (), ()
        elif is_held and name in vars(other):
            delattr(other, name)
        if is_held and containers != "plain":
            made = CONTAINERS[containers][type(value)](value)
            before = vars(kind).get(name)
            if type(before) is type(made):
                before.clear()
                (before.update if isinstance(value, dict) else before.extend)(value)
                return
            value = made
        setattr(kind, name, value)

    def fill(self, folder: str) -> dict:
        """Puts the op into a layer, as `build-ops --out` does."""
        from opforge.builders.declaration.description import description_key
        from opforge.cache import layer
        from opforge.foundation import file_owners

        entry = self.builder.build(exact=True)
        added = layer.add(folder, entry, description_key(self.builder.spec()), file_owners.trusted_ids())
        return {"values": {}, "origin": entry.origin, "key": added.key}

    def reset(self) -> None:
        """Forgets what a new process would not know."""
        from opforge.builders.lookup import fit
        from opforge.builders.toolchains.discovery import probe
        from opforge.cache import current_store
        from opforge.fast_path import library
        from opforge.foundation import remembered_values

        for module in (library, fit, probe, current_store, remembered_values):
            module.reset()


def main() -> None:
    if len(sys.argv) > 1:
        import mutants

        mutants.MUTANTS[sys.argv[1]]()
    worker, out = Worker(), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        out.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
