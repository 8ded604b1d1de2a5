"""The memory that the compiler of each source needs: the measured one, otherwise an estimate for such sources.

What was measured is kept by source, in a file for each op (`peaks` in the store), and the records of entries state it
for the sources that need much. So a machine that rejects an entry, say because it is for another architecture, knows
what its own build will need.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from opforge.builders.declaration import abi
from opforge.builders.declaration.build_plan import BuildPlan, Step
from opforge.cache import schema
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout
from opforge.cache.records.inputs import RootedPath
from opforge.cache.records.schemas import PEAKS
from opforge.foundation.files import make_folder, write_file

COMPILER_BYTES = {abi.PLAIN: 256 << 20, abi.STABLE: 512 << 20, abi.FACADE: 512 << 20, abi.TORCH: 2 << 30}
"""Memory that one compiler usually needs, in bytes by ABI."""
UNMEASURED_BYTES = {abi.PLAIN: 1 << 30, abi.STABLE: 2 << 30, abi.FACADE: 2 << 30, abi.TORCH: 4 << 30}
"""Memory that no compiler of a host's source has exceeded, of those that were measured; until it is measured."""
DEVICE_BYTES = 4 << 30
"""The same for a device's own source, such as a .cu."""
HEAVY_BYTES = 8 << 30
"""The same for a source that includes a library of templates which compilers are known to need much for."""
HEAVY_INCLUDE = re.compile(rb"^\s*#\s*include\s*[<\"](?:cutlass|cute|ck|ck_tile)/", re.MULTILINE)
"""CUTLASS, CuTe and Composable Kernel."""
INCLUDE = re.compile(rb"^\s*#\s*include\s*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)
HOST_SUFFIXES = (".cpp", ".cc", ".cxx", ".c", ".C", ".c++")
MOST_HEADERS, MOST_BYTES = 200, 1 << 20
"""How many files of an op are searched for such an include, and how many bytes of each."""
MOST_IN_A_RECORD = 32
"""How many sources a record states, those that need the most."""


class Kind(NamedTuple):
    """Sources whose compilers need about the same until each is measured."""

    suffix: str
    is_heavy: bool
    """Whether it includes a library that compilers need much memory for."""


class MemoryNeeds:
    """The memory needs of the compilers of one plan."""

    def __init__(
        self, plan: BuildPlan, roots: Mapping[str, str], layout: Layout, learnt: Iterable[tuple[str, int]] = ()
    ) -> None:
        """Takes the plan and what was `learnt` elsewhere: pairs of a source and bytes, as records state them."""
        self._plan, self._roots, self._path = plan, roots, path_of(plan, layout)
        self.known: dict[str, int] = {**dict(learnt), **read(self._path)}
        """The bytes that the compiler of each source needed, by `name_of`."""
        self._kinds: dict[RootedPath, Kind] = {}

    def expected(self) -> int:
        """Returns the bytes that the hungriest compiler is expected to need."""
        usual = COMPILER_BYTES[self._plan.abi]
        names = {name_of(source) for source in self._plan.sources} if self.known else set[str]()
        return max((need for name, need in self.known.items() if name in names), default=usual)

    def of(self, steps: Sequence[Step]) -> tuple[dict[str, int], list[str]]:
        """Returns the bytes that each compiler may need, by output, and the outputs of those that are only guessed.

        A source that was not measured needs as much as the hungriest measured one of its kind. Those of which no other
        is measured come in the order in which they are to be measured.
        """
        needs, guessed = dict[str, int](), dict[Kind, list[str]]()
        for step in steps:
            if step.unit is None:
                continue
            need = self.known.get(name_of(step.unit)) or self._of_kind(step.unit)
            if need is None:
                kind = self._kind(step.unit)
                guessed.setdefault(kind, []).append(step.output)
                need = self._guess(kind)
            needs[step.output] = need
        by_kind = [guessed[kind] for kind in sorted(guessed, key=lambda kind: (not kind.is_heavy, kind.suffix))]
        firsts, others = [outputs[0] for outputs in by_kind], [one for outputs in by_kind for one in outputs[1:]]
        return needs, [*firsts, *others]

    def learn(self, steps: Sequence[Step], peaks: Mapping[str, int], largest: int = 0) -> None:
        """Notes what compilers needed, by output.

        `largest` is the most that any process needed, if all steps have ended well: a compiler that has ended before
        it could be measured has not needed more. With 0 one has failed, and may have needed more than it got.
        """
        for step in steps:
            if step.unit is None:
                continue
            name, peak = name_of(step.unit), peaks.get(step.output, 0)
            if peak:
                self.known[name] = peak if largest else max(peak, self.known.get(name, 0))
            elif largest:
                self.known.setdefault(name, min(largest, COMPILER_BYTES[self._plan.abi]))

    def keep(self) -> None:
        """Writes the known needs of the plan's own sources, for the next build of the op."""
        if not self.known:
            return
        try:
            make_folder(os.path.dirname(self._path))
            write_file(self._path, json.dumps(self.known).encode())
        except OSError:
            return  # the next build measures again

    def stated(self) -> dict[str, int]:
        """Returns the needs for the entry's record: of the sources that need more than is assumed without it."""
        usual = COMPILER_BYTES[self._plan.abi]
        names = {name_of(source) for source in self._plan.sources}
        heavy = [(need, name) for name, need in self.known.items() if need > usual and name in names]
        return {name: need for need, name in sorted(heavy, reverse=True)[:MOST_IN_A_RECORD]}

    def _of_kind(self, source: RootedPath) -> int | None:
        """Returns the largest measured need of a source of the same kind; None if none was measured."""
        measured = [other for other in self._plan.sources if other != source and name_of(other) in self.known]
        if not measured:
            return None
        kind = self._kind(source)
        return max((self.known[name_of(other)] for other in measured if self._kind(other) == kind), default=None)

    def _guess(self, kind: Kind) -> int:
        if kind.is_heavy:
            return HEAVY_BYTES
        return UNMEASURED_BYTES[self._plan.abi] if kind.suffix in HOST_SUFFIXES else DEVICE_BYTES

    def _kind(self, source: RootedPath) -> Kind:
        if source not in self._kinds:
            folders = [folder.resolve(self._roots) or "" for folder in self._plan.of(source).include]
            heavy = includes_heavy(source.resolve(self._roots) or "", folders)
            self._kinds[source] = Kind(os.path.splitext(source.path)[1], heavy)
        return self._kinds[source]


def name_of(source: RootedPath) -> str:
    """Returns the name by which what a source needs is kept: its path below its root."""
    return f"{source.root}/{source.path}"


def path_of(plan: BuildPlan, layout: Layout) -> str:
    """Returns the path of the file with what the compilers of this op needed."""
    return layout.path("peaks", key_of([plan.op, plan.abi]))


def read(path: str) -> dict[str, int]:
    """Returns the bytes by source that a file states; nothing if there is none, or if it is damaged."""
    try:
        return dict(schema.read(path, PEAKS))
    except (OSError, schema.FormatError):
        return {}


def includes_heavy(path: str, folders: Sequence[str]) -> bool:
    """Returns whether a source, or a header of the op's own that it includes, includes such a library.

    Args:
        path: The source.
        folders: The op's include folders.
    """
    waiting, seen = [path], {path}
    while waiting:
        file = waiting.pop()
        try:
            with open(file, "rb") as stream:
                text = stream.read(MOST_BYTES)
        except OSError:
            continue  # the compiler reports it
        if HEAVY_INCLUDE.search(text):
            return True
        for name in INCLUDE.findall(text):
            for folder in (os.path.dirname(file), *folders):
                header = os.path.normpath(os.path.join(folder, os.fsdecode(name)))
                if header in seen or len(seen) > MOST_HEADERS or not os.path.isfile(header):
                    continue
                seen.add(header)
                waiting.append(header)
                break
    return False
