"""The table of kinds: a line for each. `kinds` says what a kind is."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A kind of artifacts."""

    path: str
    """Where its class is: MODULE:NAME."""
    globs: str
    """A pattern of the globs over names that a key may be trusted for."""


NAMES = r"[\w*?\[\]!-]+"
KINDS: dict[str, Entry] = {
    "compiled": Entry("opforge.graphs.statements:CompiledKind", NAMES),
    "op": Entry("opforge.remote.op_statements:OpKind", NAMES),
    "program": Entry("opforge.programs.form:ProgramKind", NAMES),
    "tuned": Entry("opforge.remote.tuned_statements:TunedKind", NAMES),
    "triton": Entry("opforge.remote.triton_statements:TritonKind", NAMES),
    "package": Entry("opforge.packages.registry.release:PackageKind", r"[a-z0-9*?\[\]!-]+/[a-z0-9*?\[\]!-]+"),
}
