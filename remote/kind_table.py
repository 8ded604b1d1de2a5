"""The table of kinds: a line for each. `kinds` says what a kind is."""

from __future__ import annotations

import re
from typing import NamedTuple


class Entry(NamedTuple):
    """A kind of artifacts."""

    path: str
    """Where its class is: MODULE:NAME."""
    globs: re.Pattern[str]
    """The globs over names that a key may be trusted for."""


KINDS: dict[str, Entry] = {
    "compiled": Entry("opforge.graphs.statements:CompiledKind", re.compile(r"[\w*?\[\]!-]+")),
    "op": Entry("opforge.remote.op_statements:OpKind", re.compile(r"[\w*?\[\]!-]+")),
    "program": Entry("opforge.programs.form:ProgramKind", re.compile(r"[\w*?\[\]!-]+")),
    "tuned": Entry("opforge.remote.tuned_statements:TunedKind", re.compile(r"[\w*?\[\]!-]+")),
    "triton": Entry("opforge.remote.triton_statements:TritonKind", re.compile(r"[\w*?\[\]!-]+")),
    "package": Entry(
        "opforge.packages.registry.release:PackageKind", re.compile(r"[a-z0-9*?\[\]!-]+/[a-z0-9*?\[\]!-]+")
    ),
}
