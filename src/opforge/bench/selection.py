"""Which ops and cases a run measures."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pkgutil import resolve_name
from typing import Any, NamedTuple

from opforge.accelerator.registry import accelerator_named
from opforge.foundation import working_folder
from opforge.ops.cases import CASES, Case, load_cases, path_of

from .measure import measurable


class Selected(NamedTuple):
    """One case of an op."""

    op: str
    """The builder's name without "Builder", or the "module:name" of a builder or of cases of another package."""
    case: Case
    builder: Any = None
    """The builder's name, or its class; None for cases without one."""

    def load(self, device: str) -> Any:
        """Loads the op for a device. None without a builder. Raises what `OpBuilder.load` raises."""
        if self.builder is None:
            return None
        is_name = isinstance(self.builder, str)
        builder: Any = accelerator_named(device).create_op_builder(self.builder) if is_name else self.builder()
        return builder.load()


class UnknownOpError(Exception):
    """There are no cases for an op. Carries the message."""


def select(names: Sequence[str]) -> list[Selected]:
    """Returns the cases of the named ops; without names, of all.

    A name is a builder's, in any spelling (CPUAdamBuilder, CPUAdam, cpu_adam), or "module:name" of a builder's class,
    or of a tuple of cases.

    Raises:
        UnknownOpError: A name has no cases, or none with sizes.
    """
    found: dict[str, list[Selected]] = {}
    for name in names or CASES:
        if ":" in name:
            found[name] = _of_another_package(name)
        else:
            builder = _builder(name)
            op = builder.removesuffix("Builder")
            found[op] = [Selected(op, case, builder) for case in load_cases(CASES[builder])]
    measured = {op: [selected for selected in of_op if selected.case.sizes] for op, of_op in found.items()}
    for op, of_op in measured.items():
        if names and not of_op:
            raise UnknownOpError(f"{op!r}: no case of it has sizes to measure. Set `sizes` of its Case.")
    return [selected for of_op in measured.values() for selected in of_op]


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


def _of_another_package(name: str) -> list[Selected]:
    """Returns the cases at "module:name", which is a builder's class that names its cases, or a tuple of cases."""
    try:
        with working_folder.searched():
            found = resolve_name(name)
            if isinstance(found, type) and (path := path_of(found)):
                return [Selected(name, case, found) for case in load_cases(path)]
            cases = load_cases(name)
    except (Exception, SystemExit) as error:  # of the module's own code
        is_plain = isinstance(error, (ImportError, AttributeError))
        problem = str(error) if is_plain else f"{type(error).__name__}: {error}"
        expected = "Expected module:NAME of a tuple of opforge.ops.cases.Case, or of a builder with `cases`."
        raise UnknownOpError(f"{name!r}: {problem}. {expected}") from error
    if nameless := next((case for case in cases if isinstance(case.function, str) and case.ours is None), None):
        raise UnknownOpError(
            f"{name!r}: the case {nameless.name!r} calls {nameless.function!r} of a loaded op,"
            " and cases alone load none. Name the builder whose `cases` they are, as module:Class."
        )
    return [Selected(name, case) for case in cases]
