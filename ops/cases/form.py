"""The form of a case: one call of an op, at several sizes, with its rivals and its reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

Call = Callable[[], object]
OURS = "opforge"
"""The contender that a case is about. It must run; the others may be missing."""
UNITS = {"GB/s": 1e9, "1000/s": 1e3}
"""Unit of a rate -> how many of what `Case.amount` returns it counts. The other unit is TIME."""
TIME = "us"
"""The unit of cases for which only the time of a call counts."""


class Seconds(float):
    """What a call returns if it measured itself, such as a command that reports its own time.

    Its value is then the sample, and not the time that the call took. `processor` is the processor time in seconds;
    None if it is not measured.
    """

    processor: float | None = None

    def __new__(cls, seconds: float, processor: float | None = None) -> Seconds:
        """Returns the sample."""
        sample = super().__new__(cls, seconds)
        sample.processor = processor
        return sample


class MissingError(Exception):
    """A contender cannot take part here. Carries the reason, in words, with what to do about it."""


@dataclass(frozen=True)
class Place:
    """What a case is measured with: one size, one dtype, one device."""

    size: int
    dtype: str = "float32"
    device: str = "cpu"
    folder: str = ""
    """An empty folder for files, on a disk. It is removed afterwards."""
    quick: bool = False
    """Whether all must be done within seconds: contenders that take longer to prepare raise MissingError."""
    stack: ExitStack = field(default_factory=ExitStack)
    """Ends what contenders have started: processes, queues, folders. It is closed after the last sample."""

    def torch_dtype(self) -> Any:
        """Returns the dtype as torch's."""
        import torch

        return getattr(torch, self.dtype)


@dataclass(frozen=True)
class Case:
    """One call of an op and its contenders. All contenders of a case work on what one `setup` returned.

    A contender is a function that gets the result of `setup` and returns a call without arguments, which is timed. It
    raises MissingError if it cannot take part.
    """

    name: str
    """What is measured, in a few words: "step", "quantize to 8 bits". It is unique among the cases of the op."""
    sizes: tuple[int, ...]
    """In the unit of `size_unit`, in ascending order."""
    setup: Callable[[Place], Any]
    """Creates the inputs."""
    contenders: Mapping[str, Callable[[Any], Call]]
    """Name -> contender. OURS is one of them."""
    reference: tuple[str, ...]
    """The contenders that show how fast the machine is, and are no upper bound. In each round the fastest counts."""
    amount: Callable[[int, int], float]
    """(size, bytes of an element) -> what one call must do: bytes moved for GB/s, requests for 1000/s."""
    unit: str = "GB/s"
    """GB/s, 1000/s, or us if only the time of a call counts."""
    size_unit: str = "elements"
    dtypes: tuple[str, ...] = ("float32",)
    quick: tuple[int, ...] | None = None
    """The sizes that --quick measures, with the first dtype only. By default the middle one; () for none."""
    goals: Mapping[str, float | Mapping[int, float]] = field(default_factory=dict)
    """Contender, or "reference" -> how many times as fast ours must be; by size, if it depends on it."""
    processor_goals: Mapping[str, float] = field(default_factory=dict)
    """Contender -> how many times its processor time ours may take."""
    devices: tuple[str, ...] = ("cpu",)

    def quick_sizes(self) -> tuple[int, ...]:
        """Returns the sizes that --quick measures."""
        return (self.sizes[len(self.sizes) // 2],) if self.quick is None else self.quick

    def goal(self, contender: str, size: int) -> float | None:
        """Returns how many times as fast as a contender ours must be at a size. None if there is no goal."""
        goal = self.goals.get(contender)
        return goal.get(size) if isinstance(goal, Mapping) else goal


@dataclass(frozen=True)
class Timed:
    """What `opforge tune` times with one config, and how its result is checked."""

    call: Call
    results: Callable[[], Any]
    """Computes once, from the same inputs each time, and returns tensors, also in lists."""
    expected: Any
    """The same tensors by the op's reference, floating-point ones in float64."""
    rtol: float = 0.0
    atol: float = 0.0
    """How far a result may be from what is expected."""


@dataclass(frozen=True)
class TuningCase:
    """One call of an op that `opforge tune` times at several sizes, with each config that the op lets it set."""

    sizes: tuple[int, ...]
    """What the op counts, in ascending order: elements, bytes."""
    setup: Callable[[Place], Any]
    """Creates the inputs, which all configs share."""
    timed: Callable[[Any, Mapping[str, int]], Timed]
    """Gets what `setup` returned, and the config. It is set in the library of this process already."""
    dtypes: tuple[str, ...] = ("float32",)
    what: str = ""
    """The kernel, for a Triton op."""
    device: str = "cpu"
