"""What mypy sees of the public functions. `make check` reads it: an ignored error that is none is an error there."""

from __future__ import annotations

import opforge
from opforge import OpBuilder
from opforge.builders.base import Loaded


class Typed(OpBuilder):
    """A builder whose attributes have the types that are declared."""

    name = "typed"
    sources = ("typed.cpp",)
    requires_torch = ">=2.11"
    extra_compile_args = 3  # type: ignore[assignment]


def use() -> None:
    """Calls that are right, and calls that mypy must refuse."""
    opforge.load("typed", ["typed.cpp"], requires_torch=">=2.11", extra_compile_args=["-O3"], debug=True)
    opforge.load("typed", ["typed.cpp"], requires_torhc=">=2.11")  # type: ignore[call-arg]
    opforge.load("typed", ["typed.cpp"], extra_cflags=3)  # type: ignore[arg-type]
    opforge.load("typed", ["typed.cpp"], requires_torch=3)  # type: ignore[arg-type]
    opforge.load_inline("typed", "int x;", groups=[])  # type: ignore[call-arg]
    opforge.load_inline("typed", "int x;", functions={"f": "its text"}, torch_target="2.11")
    opforge.load_inline("typed", 3)  # type: ignore[arg-type]
    opforge.get_kernel("acme/relu", version=3.0)  # type: ignore[arg-type]
    loaded: Loaded | None = Typed().current()
    text: int = Typed().debug and loaded is None  # a bool is an int
    assert text is not None
