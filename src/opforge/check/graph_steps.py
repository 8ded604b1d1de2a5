"""A step of `opforge check compiled`, in a process of its own: compiles functions, or finds them, after edits of ops.

It prints one line of JSON: what was wrong.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from opforge.errors import CompileForbiddenError
from opforge.foundation.lazy_torch import torch

NAME = "opforge-check"
OPS = ("kernel", "schema", "fake")
"""The edited parts of three ops. Each op is called by a function of its name."""
FIRST, FOUND, EDITED = "compile", "find", "edit"
MARK = "opforge-check-compiled:"
"""How the line begins that says what was wrong: others may print too."""
factor = 2.0
"""A global that a compiled function reads."""


class Step(NamedTuple):
    """The steps of a process."""

    kind: str
    torch: str
    """The version that is tried; its hooks are used although it is unknown."""

    @property
    def edit(self) -> int:
        """Returns the number that an edit changes."""
        return 3 if self.kind == EDITED else 2


def main() -> None:
    """Runs the step that the command line names."""
    step = Step(*sys.argv[1:])
    from opforge.torch_internals import inductor

    inductor.tried = step.torch
    problems = list(run(step))
    problems += [f"a function was not wrapped: {problem}" for problem in inductor.problems]
    sys.stdout.write(f"{MARK}{json.dumps(problems)}\n")


def run(step: Step) -> Iterator[str]:
    """Yields the problems of a step."""
    import opforge

    functions = {"guarded": guarded, **_functions(step)}
    x = torch.arange(6, dtype=torch.float32)
    allowed: Any = opforge.no_builds() if step.kind == FOUND else contextlib.nullcontext()
    with opforge.compiled(NAME) as graphs, allowed:
        if graphs.problem:
            yield f"the scope does nothing: {graphs.problem}"
            return
        if (step.kind == FIRST) != (graphs.found == 0):
            yield f"{graphs.found} pages were found"
        for name, function in functions.items():
            before = len(graphs.compiled)
            try:
                got = torch.compile(function, fullgraph=True)(x)
            except Exception as error:  # of torch: anything
                yield f"{name}: {type(error).__name__}: {str(error)[:300]}"
                continue
            if not torch.allclose(got, function(x)):
                yield f"{name}: a wrong result"
            is_compiled = len(graphs.compiled) > before
            is_expected = step.kind == FIRST or (step.kind == EDITED and name in ("schema", "fake"))
            if is_compiled != is_expected and not (step.kind == EDITED and name == "kernel"):
                done = "was compiled" if is_compiled else "was found, and not compiled"
                yield f"{name}: its graph {done}, expected the other"
        if step.kind == FOUND:
            yield from _guards(x)


def guarded(x: Any) -> Any:
    """Returns a tensor that depends on a global, on a dtype, and on C++ of inductor."""
    return (x * factor).sin()


def _guards(x: Any) -> Iterator[str]:
    """Yields the problems of guards: a guard that fails must compile anew, which is forbidden here."""
    global factor
    yield from _refused("another dtype", lambda: torch.compile(guarded, fullgraph=True)(x.double()))
    factor, before = 3.0, factor
    yield from _refused("another value of a global", lambda: torch.compile(guarded, fullgraph=True)(x))
    factor = before


def _refused(what: str, call: Callable[[], Any]) -> Iterator[str]:
    try:
        call()
    except Exception as error:  # torch wraps ours
        causes: list[BaseException] = [error]
        while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
            causes.append(cause)
        if not any(isinstance(each, CompileForbiddenError) for each in causes):
            yield f"{what}: {type(error).__name__}: {str(error)[:300]}"
        return
    yield f"{what}: no guard failed, or what no_builds() forbids was compiled"


def _functions(step: Step) -> dict[str, Callable[[Any], Any]]:
    """Registers the three ops, with an edit each, and returns a function that calls each one."""
    import opforge

    # What is registered before opforge sees it is of nobody.
    with opforge.compiled(NAME + "-begin"):
        pass
    library: Any = torch.library.Library
    edited = library("opforge_check", "DEF")
    kept.append(edited)
    number = step.edit
    edited.define("kernel(Tensor x) -> Tensor")
    edited.define(f"schema(Tensor x, float by={number}.0) -> Tensor")
    edited.define("fake(Tensor x) -> Tensor")
    kernels: dict[str, tuple[Any, Any]] = {
        "kernel": (lambda x: x * number, lambda x: torch.empty_like(x)),
        "schema": (lambda x, by=0.0: x * by, lambda x, by=0.0: torch.empty_like(x)),
        "fake": (lambda x: x.repeat(number), lambda x: x.new_empty(x.numel() * number)),
    }
    for name, (kernel, fake) in kernels.items():
        edited.impl(name, kernel, "CPU")
        torch.library.register_fake(f"opforge_check::{name}", fake, lib=edited)
    ops = torch.ops.opforge_check
    return {
        "kernel": lambda x: ops.kernel(x).view(1, -1),
        "schema": lambda x: ops.schema(x).view(1, -1),
        "fake": lambda x: ops.fake(x).view(1, -1),
    }


kept: list[Any] = []
"""torch forgets what a library has registered when nothing refers to it."""

if __name__ == "__main__":
    main()
