"""The table of kinds: a line for each. `kinds.Kind` defines a kind."""

from __future__ import annotations

from typing import NamedTuple


class KindRow(NamedTuple):
    """A kind of artifacts."""

    path: str
    """Where it is: MODULE:NAME."""
    globs: str
    """A pattern of the globs over names that a key may be trusted for."""
    form: str = "NAME"
    """The form of its names, in words."""


NAMES = r"[\w*?\[\]!-]+"
KINDS: dict[str, KindRow] = {
    "op": KindRow("opforge.remote.op_statements:OP", NAMES),
    "program": KindRow("opforge.programs.form:PROGRAM", NAMES),
    "tuned": KindRow("opforge.remote.tuned_statements:TUNED", NAMES),
    "jit": KindRow("opforge.jits.kind:JIT", r"[a-z0-9*?\[\]!-]+/[\w*?\[\]!-]+", "ADAPTER/LABEL"),
    "package": KindRow(
        "opforge.packages.registry.release:PACKAGE", r"[a-z0-9._*?\[\]!-]+/[a-z0-9._*?\[\]!-]+", "ORG/NAME"
    ),
}

FORMER = {
    "triton": "jit:triton/LABEL for kernels, and jit:triton-host/LABEL for Triton's library for the host",
    "compiled": "jit:inductor/NAME",
}
"""Kinds that are gone, and the scopes that took their place."""
FORMER_NAMED = "; ".join(f"in place of {kind}:NAME {instead}" for kind, instead in FORMER.items())
"""The same for messages."""


def scope_of(kind: str) -> str:
    """Returns how a key is trusted for names of a kind, such as op:NAME."""
    return f"{kind}:{KINDS[kind].form}"
