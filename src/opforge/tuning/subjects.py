"""What is tuned: a loaded op, the configs that it can be set, and how."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.builders.base import OpBuilder
from opforge.builders.declaration.op_spec import OpSpec
from opforge.builders.declaration.tunable import candidates
from opforge.builders.lookup import tuned
from opforge.builders.lookup.tuned import Wanted
from opforge.errors import TuningError
from opforge.ops.cases.form import TuningCase
from opforge.warm import library

Config = Mapping[str, int]
LARGEST = (1 << 62) - 1
ANY_DTYPE = -1


class Subject(NamedTuple):
    """An op that is loaded, with its defaults."""

    op: str
    wanted: Wanted
    """What a result is for."""
    cases: Sequence[TuningCase]
    configs: Callable[[TuningCase], list[Config]]
    """The configs of a case, without the default."""
    use: Callable[[TuningCase, Config], None]
    """Sets a config, for calls of all dtypes and sizes; an empty one is the default."""
    restore: Callable[[], None]
    """Sets what the stored result says again."""


def can_be_tuned(kind: type) -> bool:
    """Returns whether a builder's class declares something to tune."""
    return bool(getattr(kind, "tunable", ())) or any(
        getattr(kernel, "configs", ()) for kernel in getattr(kind, "kernels", ())
    )


def load(builder: OpBuilder) -> Subject:
    """Loads an op, and returns it as what is tuned. Raises what `OpBuilder.load` raises, TuningError."""
    name = type(builder).__name__
    if not can_be_tuned(type(builder)):
        advice = "Declare `tunable` in its builder, or `configs` of its kernels: see docs/tuning.md"
        raise TuningError(name, "it declares nothing to tune", advice)
    cases = _cases(builder)
    spec, op = builder.spec(), builder.load()
    return _of_kernels(builder, spec, op, cases) if spec.kernels else _of_library(spec, op, cases)


def _cases(builder: OpBuilder) -> Sequence[TuningCase]:
    name, where = type(builder).__name__, builder.tuning
    module, colon, attribute = where.partition(":")
    if not colon:
        advice = 'Write tuning = "module:NAME" with a TuningCase: see docs/tuning.md'
        raise TuningError(name, f"tuning is {where!r}, so there is nothing to time", advice)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise TuningError(name, f"tuning={where!r} cannot be imported: {error}", "Correct that name") from error
    cases = (found,) if isinstance(found, TuningCase) else tuple(found)
    if not cases or not all(isinstance(case, TuningCase) for case in cases):
        raise TuningError(name, f"tuning={where!r} does not name a TuningCase", "Name one, or a tuple of them")
    return cases


def _of_library(spec: OpSpec, op: Any, cases: Sequence[TuningCase]) -> Subject:
    entry = op.__entry__
    try:
        defaults = library.tunables(library.loaded_handle(entry))
    except OSError as error:
        advice = "Include <opforge/tunable.h> in a source of the op: see docs/tuning.md"
        raise TuningError(spec.name, f"its library has nothing to set: {error}", advice) from error
    tunable = dict(spec.tunable)
    if missing := [name for name in tunable if name not in defaults]:
        there = ", ".join(defaults)
        raise TuningError(spec.name, f"its library has no {missing[0]!r}", f"It has: {there}. Correct `tunable`")
    every = [config for config in candidates(tunable) if config != {name: defaults[name] for name in tunable}]

    def use(_case: TuningCase, config: Config) -> None:
        library.held.add(entry.key)  # what is timed may load the op again
        library.set_tuned(entry, [[ANY_DTYPE, 0, LARGEST, dict(config)]] if config else [], is_held=True)

    def restore() -> None:
        library.held.discard(entry.key)
        tuned.reset()
        tuned.apply(spec, entry)

    return Subject(spec.name, tuned.wanted(spec.name, entry), cases, lambda _case: [*every], use, restore)


def _of_kernels(builder: Any, spec: OpSpec, op: Any, cases: Sequence[TuningCase]) -> Subject:
    declared = {kernel.name: kernel for kernel in builder.kernels}
    for case in cases:
        if case.what not in declared or not declared[case.what].configs:
            with_configs = ", ".join(kernel.name for kernel in builder.kernels if kernel.configs)
            advice = f"Set `what` of its TuningCase to one of: {with_configs}"
            raise TuningError(spec.name, f"it has no kernel {case.what!r} with configs", advice)
    before = dict(op.kernels.choices)

    def use(case: TuningCase, config: Config) -> None:
        choice = [(0, LARGEST, declared[case.what].variant(config).name)] if config else []
        op.kernels.choices[case.what] = choice

    def restore() -> None:
        op.kernels.choices.clear()
        op.kernels.choices.update(before)

    wanted = tuned.wanted_of_device(spec, op.library.__entry__)
    return Subject(spec.name, wanted, cases, lambda case: [*declared[case.what].configs], use, restore)


def places(subject: Subject, shapes: Mapping[str, Sequence[int]] | None) -> list[tuple[TuningCase, str, int]]:
    """Returns what is timed: cases with dtypes and sizes. Without shapes, those of the cases. Raises TuningError."""
    if shapes is None:
        return [(case, dtype, size) for case in subject.cases for dtype in case.dtypes for size in case.sizes]
    every = [*dict.fromkeys(itertools.chain.from_iterable(case.dtypes for case in subject.cases))]
    if not any(dtype in every for dtype in shapes):
        problem = f"the shapes are for {', '.join(shapes)}"
        raise TuningError(subject.op, problem, f"Name dtypes that it is timed with: {', '.join(every)}")
    return [(case, dtype, size) for case in subject.cases for dtype in case.dtypes for size in shapes.get(dtype, ())]
