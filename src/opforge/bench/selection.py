"""Which ops and cases a run measures."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from opforge import working_folder
from opforge.ops.cases import CASES, Case, load_cases

from .measure import measurable


class Selected(NamedTuple):
    """One case of an op."""

    op: str
    """The builder's name without "Builder", or the "module:name" of cases of another package."""
    case: Case


class UnknownOpError(Exception):
    """There are no cases for an op. Carries the message."""


def select(names: Sequence[str]) -> list[Selected]:
    """Returns the cases of the named ops; without names, of all.

    A name is a builder's, in any spelling (CPUAdamBuilder, CPUAdam, cpu_adam), or "module:name" of a tuple of cases.

    Raises:
        UnknownOpError: A name has no cases.
    """
    paths: dict[str, str] = {}
    for name in names or CASES:
        builder = name if ":" in name else _builder(name)
        paths[builder.removesuffix("Builder")] = CASES.get(builder, builder)
    return [Selected(op, case) for op, path in paths.items() for case in _load(path)]


def points(selected: Sequence[Selected], device: str, quick: bool) -> Iterator[tuple[Selected, int, str]]:
    """Yields (case, size, dtype) of all that a run measures on a device."""
    for item in selected:
        for size, dtype in measurable(item.case, device, quick):
            yield item, size, dtype


def _builder(name: str) -> str:
    by_form = {_form(builder): builder for builder in CASES}
    form = _form(name)
    if form in by_form:
        return by_form[form]
    near = [by_form[other] for other in difflib.get_close_matches(form, by_form, n=2, cutoff=0.5)]
    suggestion = f" Did you mean {' or '.join(op.removesuffix('Builder') for op in near)}?" if near else ""
    listed = ", ".join(builder.removesuffix("Builder") for builder in CASES)
    raise UnknownOpError(
        f"{name!r} is not an op that has cases.{suggestion} Expected any of: {listed}; or module:NAME of your own."
    )


def _form(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").removesuffix("builder")


def _load(path: str) -> tuple[Case, ...]:
    try:
        with working_folder.searched() if path not in CASES.values() else contextlib.nullcontext():
            cases = load_cases(path)
    except (Exception, SystemExit) as error:  # of the module's own code
        problem = str(error) if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: {error}"
        raise UnknownOpError(f"{path!r}: {problem}. Expected module:NAME of a tuple of cases.") from error
    if not (isinstance(cases, tuple) and all(isinstance(case, Case) for case in cases)):
        raise UnknownOpError(f"{path!r} is not a tuple of opforge.ops.cases.Case.")
    return cases
