"""The subject of tuning: a loaded op, the configs that it can be set to, and how."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from opforge.bench.measure import make_place
from opforge.builders.base import OpBuilder
from opforge.builders.declaration.op_spec import OpSpec
from opforge.builders.declaration.tunable import candidates
from opforge.builders.lookup import tuned
from opforge.builders.lookup.tuned import WantedResult
from opforge.errors import TuningError
from opforge.fast_path import library
from opforge.ops.cases import OURS, Case, cases_of, path_of

Config = Mapping[str, int]
LARGEST = (1 << 62) - 1
ANY_DTYPE = -1


class Timing(NamedTuple):
    """A part that is timed by itself."""

    case: Case
    dtype: str
    size: int
    """The size of the case's inputs."""
    counted: int
    """The size of the call, as the op counts it: calls of other sizes are compared with it."""


class Subject(NamedTuple):
    """An op that is loaded, with its defaults."""

    op: str
    wanted: WantedResult
    """The subject of a result."""
    cases: Sequence[Case]
    configs: Callable[[Case], list[Config]]
    """The configs of a case, without the default."""
    use: Callable[[Case, Config], None]
    """Sets a config, for calls of all dtypes and sizes; an empty one is the default."""
    restore: Callable[[], None]
    """Sets what the stored result says again."""
    loaded: Any = None
    """The op, as its builder's `load()` returns it."""
    device: str = "cpu"
    launched: Callable[[Case, str, int], Mapping[str, int]] | None = None
    """Of a Triton op: what a call of a case launches of the kernels that have configs, with the size of each launch."""


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
    spec = builder.spec()
    if not spec.kernels:
        return _of_library(spec, builder.load(), cases)
    from opforge.builders.triton_op_builder import tuned as kernels_tuned

    own: Any = kernels_tuned.with_configs(builder)
    op = own.load()
    if op.library is None:
        problem = "its kernels are launched through Triton itself, which takes no configs"
        raise TuningError(name, problem, "Unset OPFORGE_TRITON_JIT and TRITON_INTERPRET")
    return _of_kernels(own, spec, op, cases, kernels_tuned.wanted(own, op.library.__entry__))


def _cases(builder: OpBuilder) -> Sequence[Case]:
    """Returns the cases of a builder that are tuned. Raises TuningError if there are none."""
    name, where = type(builder).__name__, path_of(type(builder))
    try:
        cases = [case for case in cases_of(type(builder)) if case.tuned]
    except (ImportError, AttributeError, TypeError) as error:
        raise TuningError(name, f"cases={where!r} cannot be used: {error}", "Correct that name") from error
    if not cases:
        problem = f"no case of {where} is `tuned`" if where else "it names no cases"
        advice = 'Write cases = "module:NAME" in it, with a Case that has the sizes in `tuned`: see docs/tuning.md'
        raise TuningError(name, f"{problem}, so there is nothing to time", advice)
    return cases


def _of_library(spec: OpSpec, op: Any, cases: Sequence[Case]) -> Subject:
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

    def use(_case: Case, config: Config) -> None:
        library.held.add(entry.key)  # what is timed may load the op again
        library.set_tuned(entry, [[ANY_DTYPE, 0, LARGEST, dict(config)]] if config else [], is_held=True)

    def restore() -> None:
        library.held.discard(entry.key)
        tuned.reset()
        tuned.apply(spec, entry)

    return Subject(spec.name, tuned.wanted(spec.name, entry), cases, lambda _case: [*every], use, restore, op)


def _of_kernels(builder: Any, spec: OpSpec, op: Any, cases: Sequence[Case], wanted: WantedResult) -> Subject:
    declared = {kernel.name: kernel for kernel in builder.kernels}
    for case in cases:
        if case.kernel and (case.kernel not in declared or not declared[case.kernel].configs):
            with_configs = ", ".join(kernel.name for kernel in builder.kernels if kernel.configs)
            advice = f"Set `kernel` of its Case to one of: {with_configs}"
            raise TuningError(spec.name, f"it has no kernel {case.kernel!r} with configs", advice)
    before = dict(op.kernels.choices)

    def use(case: Case, config: Config) -> None:
        choice = [(0, LARGEST, declared[case.kernel].variant(config).name)] if config else []
        op.kernels.choices[case.kernel] = choice

    def restore() -> None:
        op.kernels.choices.clear()
        op.kernels.choices.update(before)

    device = spec.target.device

    def launched(case: Case, dtype: str, size: int) -> Mapping[str, int]:
        if case.kernel:
            return {case.kernel: size}
        found = _launches(op, case, dtype, size, device)
        return {name: count for name, count in found.items() if name in declared and declared[name].configs}

    def configs(case: Case) -> list[Config]:
        return [*declared[case.kernel].configs]

    return Subject(spec.name, wanted, cases, configs, use, restore, op, device, launched)


def _launches(op: Any, case: Case, dtype: str, size: int, device: str) -> dict[str, int]:
    """Returns the kernels that a call of a case launches, with the elements of the first tensor of each launch."""
    found, kernels = dict[str, int](), op.kernels
    launch = kernels.launch

    def noted(name: str, grid: Any, *arguments: Any) -> None:
        found.setdefault(name, arguments[0].numel())
        launch(name, grid, *arguments)

    with make_place(size, dtype, device if device in case.devices else case.devices[0], quick=True) as place:
        inputs = case.prepare(place, op)
        kernels.launch = noted
        try:
            case.contenders[OURS](inputs)()
        finally:
            del kernels.launch
    return found


def places(subject: Subject, shapes: Mapping[str, Sequence[int]] | None) -> list[Timing]:
    """Returns a subject's timings: cases with dtypes and sizes. Without shapes, the cases' own. Raises TuningError.

    A case of a Triton op that names no kernel is timed for each kernel that its call launches, and that no case before
    it has been timed for at this size.
    """
    every = _places(subject, shapes)
    if subject.launched is None:
        return [Timing(case, dtype, size, size) for case, dtype, size in every]
    made: dict[tuple[str, str, int], Timing] = {}
    for case, dtype, size in every:
        for kernel, counted in subject.launched(case, dtype, size).items():
            made.setdefault((kernel, dtype, counted), Timing(replace(case, kernel=kernel), dtype, size, counted))
    return [*made.values()]


def _places(subject: Subject, shapes: Mapping[str, Sequence[int]] | None) -> list[tuple[Case, str, int]]:
    if shapes is None:
        return [(case, dtype, size) for case in subject.cases for dtype, sizes in case.tuned.items() for size in sizes]
    every = [*dict.fromkeys(itertools.chain.from_iterable(case.tuned for case in subject.cases))]
    if not any(dtype in every for dtype in shapes):
        problem = f"the shapes are for {', '.join(shapes)}"
        raise TuningError(subject.op, problem, f"Name dtypes that it is timed with: {', '.join(every)}")
    return [(case, dtype, size) for case in subject.cases for dtype in case.tuned for size in shapes.get(dtype, ())]
