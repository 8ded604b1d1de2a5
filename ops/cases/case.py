"""`Case`: the complete description of one function of an op, written once.

The bench, the tuning, the check and the contract of ops read it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from opforge.foundation.lazy_torch import torch

Call = Callable[[], object]
OURS = "opforge"
"""The contender that a case is about. It must run; the others may be missing."""
UNITS = {"GB/s": 1e9, "1000/s": 1e3}
"""Unit of a rate -> how many of what `Case.amount` returns it counts. The other unit is TIME."""
ANY = "any"
"""The dtype of tuning results for a quantity that is the same for all dtypes."""
LARGE = 1 << 17
"""Elements of a large shape. An op makes work for another thread of 16,384 elements, or of 64 KiB."""
DTYPE = "b?float(16|32|64)|float(8|4)_[a-z0-9_]+|complex(32|64|128)|u?int(8|16|32|64)|bool"
"""Pattern of the names of torch's dtypes: a case is made without torch."""
TIME = "us"
"""The unit of cases for which only the time of a call counts."""


class Seconds(float):
    """The result of a call that measured itself, such as a command that reports its own time.

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


class Promise(StrEnum):
    """A promise of an op about its results, besides agreement with the reference.

    "The same bytes" is about results without NaN. The contract of ops has a test for each promise.
    """

    REPEATS = "repeats"
    """The same bytes at each call."""
    THREADS = "threads"
    """The same bytes for each number of threads."""
    BATCH = "batch"
    """A row has the same bytes alone and in each batch, wherever it is there. `Case.batch` says what a row is."""
    ALIGNMENT = "alignment"
    """The same bytes wherever the storage of a tensor begins."""
    ZEROS = "signed zeros"
    """A zero has the sign that it has in the reference."""
    NAN = "NaN"
    """A NaN in an input reaches exactly what it reaches in the reference."""
    INFINITIES = "infinities"
    """NaN, infinities, zeros and denormal numbers among ordinary numbers have the reference's result."""
    PAYLOADS = "NaN payloads"
    """A NaN has the bits that the reference gives it, which works on integers here: those of a copy."""
    ACCURACY = "accuracy"
    """The error is at most `Case.accuracy` times that of the reference in the dtype of the inputs."""


ORDINARY = (
    Promise.REPEATS,
    Promise.THREADS,
    Promise.ALIGNMENT,
    Promise.NAN,
    Promise.INFINITIES,
    Promise.ACCURACY,
)
"""The default promises of a case."""


@dataclass(frozen=True)
class Place:
    """Where inputs are created: one size or shape, one dtype, one device."""

    size: int
    dtype: str = "float32"
    device: str = "cpu"
    folder: str = ""
    """An empty folder for files, on a disk. It is removed afterwards. Empty text where nothing is timed."""
    quick: bool = False
    """Whether all must be done within seconds: contenders that take longer to prepare raise MissingError."""
    stack: ExitStack = field(default_factory=ExitStack)
    """Ends what contenders have started: processes, queues, folders. It is closed after the last sample."""
    shape: tuple[int, ...] = ()
    """One of `Case.shapes`, or what `Case.shape` makes of the size."""
    config: Mapping[str, int] = field(default_factory=dict)
    """The config that `opforge tune` times, which is set in this process already. Empty for the defaults."""

    def torch_dtype(self) -> Any:
        """Returns the dtype as torch's; float32 for "any"."""
        return torch.float32 if self.dtype == ANY else getattr(torch, self.dtype)

    def draw(self, *shape: int, seed: int = 1, dtype: Any = None) -> Any:
        """Returns a tensor of this place's dtype, or of another, on its device: the same values on each machine.

        They are normally distributed.
        """
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return values.to(self.torch_dtype() if dtype is None else dtype).to(self.device)


class Prepared(NamedTuple):
    """The prepared inputs of a case, which all contenders share."""

    case: Case
    place: Place
    loaded: Any
    """The op, as its builder's `load()` returns it. None if the case was found without a builder."""
    arguments: Any
    """The value that `Case.inputs` returned."""

    @property
    def amount(self) -> float:
        """The amount of work of one call: see `Case.amount`."""
        return self.case.amount(self.place.size, self.place.torch_dtype().itemsize)


def _nothing(_size: int, _itemsize: int) -> float:
    """Returns an amount for what nothing is counted of."""
    return 1.0


def _flat(size: int) -> tuple[int, ...]:
    """Returns the shape of so many elements in one dimension."""
    return (size,)


def _all(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Returns whether a value is a tuple of such values."""
    return lambda value: isinstance(value, (tuple, list)) and all(map(is_right, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _is_dtype(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(DTYPE, value) is not None


def _is_tolerance(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_dtype, value)) and all(isinstance(own, (int, float)) and own >= 0 for own in value.values())
    return value is None or callable(value) or (isinstance(value, (int, float)) and value >= 0)


def _is_batch(value: Any) -> bool:
    if not isinstance(value, Mapping) or not all(map(_is_number, value)):
        return False
    dimensions = [own for own in value.values() if own is not None]
    return all(map(_is_number, dimensions)) and bool(dimensions) == bool(value)


def _is_tuned(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        (dtype == ANY or _is_dtype(dtype)) and _SIZES(sizes) for dtype, sizes in value.items()
    )


_SIZES = _all(_is_number)
_TEXTS = _all(lambda value: isinstance(value, str))
FORMS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("dtypes", _all(_is_dtype), "a tuple of torch's dtypes by name: ('float32', 'bfloat16')"),
    ("timed_dtypes", _all(_is_dtype), "a tuple of torch's dtypes by name: ('float32',)"),
    ("refused_dtypes", _all(_is_dtype), "a tuple of torch's dtypes by name: ('int64',)"),
    ("shapes", _all(_SIZES), "a tuple of shapes: ((1,), (3, 5))"),
    ("large_shape", lambda value: value is None or _SIZES(value), "a shape, or None: (64, 4096)"),
    ("tolerance", _is_tolerance, "a number, numbers by torch's dtypes, a function, or None: {'bfloat16': 1e-2}"),
    ("outputs", _all(lambda value: isinstance(value, str) or _is_number(value)), "a tuple of arguments: ('out',)"),
    ("changed", _SIZES, "a tuple of positions of arguments: (0,)"),
    ("opcheck", _TEXTS, "a tuple of tests of torch.library.opcheck"),
    ("promises", _all(lambda value: value in tuple(Promise)), "a tuple of Promise: (*ORDINARY, Promise.BATCH)"),
    ("batch", _is_batch, "positions of arguments with the dimensions of their rows, one at least: {0: 0, 1: None}"),
    ("sizes", lambda value: _SIZES(value) and sorted(value) == [*value], "a tuple in ascending order: (1024, 4096)"),
    ("quick", lambda value: value is None or _SIZES(value), "a tuple of sizes, or None: (4096,)"),
    ("baseline", _TEXTS, "a tuple of rivals: ('copy',)"),
    ("devices", _TEXTS, "a tuple of devices: ('cpu', 'cuda')"),
    ("unit", lambda value: value in (*UNITS, TIME), f"one of {', '.join((*UNITS, TIME))}"),
    ("tuned", _is_tuned, "sizes by torch's dtypes, or by 'any': {'float32': (4096,)}"),
)
"""Field of a case, whether its value has the right form, what that is."""


@dataclass(frozen=True)
class Case:
    """One function of an op: its inputs, what is right, what it promises, and what is timed.

    `opforge check` and `opforge.testing.OpContract` compare a case that has a reference, `opforge bench` times one that
    has `sizes`, and `opforge tune` one that is `tuned`.
    """

    name: str
    """The function in a few words: "step", "quantize to 8 bits". It is unique among the cases of the op."""
    inputs: Callable[[Place], Any]
    """Returns the arguments of a call, for `place.shape`: a tuple of tensors, lists of tensors, numbers."""
    function: str | Callable[[Any], Callable[..., Any]] = ""
    """The name of a function of the loaded op; or it gets the loaded op and returns the function."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of each call, of the function and of the reference."""

    # What is right.
    reference: Callable[..., Any] | None = None
    """Returns the function's results, then the new value of each argument that its schema marks as (a!).

    It gets the same arguments, and works in the dtype of these: with float64 it is exact, and with others it is what
    torch's operators make of it (eager). None: there is nothing to compare with, or another case does.
    """
    dtypes: tuple[str, ...] = ("float32",)
    """Names of torch's dtypes that the inputs are made for."""
    shapes: tuple[tuple[int, ...], ...] = ((0,), (1,), (7,), (3, 5), (2, 1, 9), (1025,))
    """Sizes of the inputs: by default empty, single, odd, and more than one block."""
    tolerance: float | Mapping[str, float] | Callable[..., Any] | None = None
    """The error that is allowed. 0: the results are exact, as those of a copy.

    None: four units in the last place of the result's dtype, one in dtypes of 16 bits, relative to the exact value; and
    a quarter of that relative to the largest one. A number, which is relative to the exact value, and to the largest
    one or 1, whichever is less; numbers by the names of dtypes; or a function that gets what the reference gets, and
    returns the absolute errors that are allowed for each result, element by element: all beside the units above.
    """
    integers: int = 0
    """How far an integer may be from the reference's: 1 where a rounding decides between two codes."""
    outputs: tuple[str | int, ...] = ()
    """Arguments that the function only writes: names of its schema, or positions. They hold NaN before each call."""
    changed: tuple[int, ...] = ()
    """Positions of arguments that the function changes though no schema says so. It must return what is compared."""
    large_shape: tuple[int, ...] | None = None
    """A shape of which an op makes work for several threads, which is compared too.

    By default the largest of `shapes` with more in its first dimension, LARGE elements at least.
    """
    refused_dtypes: tuple[str, ...] = ("int64",)
    """If every floating-point argument has one of these dtypes, the function must raise an error."""
    strided: bool = True
    """Whether it takes tensors of any strides. If not, it may refuse some, and must then change nothing."""
    differentiable: bool = False
    """Whether it has gradients: they are compared with those of the reference."""
    compiled: bool = True
    """Whether torch.compile must trace it without a graph break."""
    backend: str = "aot_eager"
    """The backend of torch.compile; "inductor" also compiles, which takes longer."""
    opcheck: tuple[str, ...] = (
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_dynamic",
    )
    """The tests of torch.library.opcheck."""
    promises: tuple[Promise, ...] = ORDINARY
    batch: Mapping[int, int | None] = field(default_factory=dict)
    """Position of an argument -> the dimension of its rows, of which each is computed by itself.

    None: the argument is the number of rows. What the function returns has its rows in the first dimension.
    """
    accuracy: float = 2.0
    """How many times eager's error the function's may be, in units of the op's conditioning: see docs/cases.md."""
    checks: Mapping[str, Callable[[Any, str], None]] = field(default_factory=dict)
    """Behaviour that no reference covers -> function of the loaded op and the device; raises AssertionError."""

    # What is timed.
    sizes: tuple[int, ...] = ()
    """In the unit of `size_unit`, in ascending order. Empty: it is not timed."""
    shape: Callable[[int], tuple[int, ...]] = _flat
    """Returns the shape of a size."""
    size_unit: str = "elements"
    timed_dtypes: tuple[str, ...] = ()
    """Those of `dtypes` that are timed; by default all."""
    ours: Callable[[Prepared], Call] | None = None
    """Returns the call that is timed, if users call something else than the function: a step of an optimizer."""
    rivals: Mapping[str, Callable[[Prepared], Call]] = field(default_factory=dict)
    """Name -> function that returns a rival's call. It raises MissingError if the rival cannot take part."""
    baseline: tuple[str, ...] = ()
    """The rivals that show how fast the machine is, and are no upper bound. In each round the fastest counts."""
    amount: Callable[[int, int], float] = _nothing
    """(size, bytes of an element) -> what one call must do: bytes moved for GB/s, requests for 1000/s."""
    operations: Callable[[int], float] | None = None
    """Size -> the floating-point operations of one call, where these and not the bytes may be the limit."""
    unit: str = "GB/s"
    """GB/s, 1000/s, or us if only the time of a call counts."""
    quick: tuple[int, ...] | None = None
    """The sizes that --quick measures, with the first dtype only. By default the middle one; () for none."""
    goals: Mapping[str, float | Mapping[int, float]] = field(default_factory=dict)
    """Rival, or "baseline" -> how many times as fast ours must be; by size, if it depends on it."""
    processor_goals: Mapping[str, float] = field(default_factory=dict)
    """Rival -> how many times its processor time ours may take."""
    devices: tuple[str, ...] = ("cpu",)
    """Where it is timed."""

    # What is tuned.
    tuned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Dtype, or "any" -> the sizes that `opforge tune` times, in what the op counts."""
    kernel: str = ""
    """The kernel that is tuned, of a Triton op."""

    def __post_init__(self) -> None:
        """Raises ValueError for a field with a value of another form, and for a case that contradicts itself."""
        for name, is_right, expected in FORMS:
            value = getattr(self, name)
            if not is_right(value):
                raise ValueError(f"the case {self.name!r} has {name}={value!r}: expected {expected}")
        if (Promise.BATCH in self.promises) != bool(self.batch):
            raise ValueError(f"the case {self.name!r} promises BATCH or has `batch`, expected both or none")
        unknown = [name for name in self.baseline if name not in self.rivals]
        unknown += [name for name in self.goals if name not in (*self.rivals, "baseline")]
        unknown += [name for name in self.processor_goals if name not in self.rivals]
        if unknown:
            raise ValueError(
                f"the case {self.name!r} names {unknown[0]!r}: expected one of its rivals: {', '.join(self.rivals)}"
            )

    @property
    def contenders(self) -> Mapping[str, Callable[[Prepared], Call]]:
        """All that is timed, ours first."""
        return {OURS: self.ours or call_of, **self.rivals}

    def bound(self, loaded: Any) -> Callable[..., Any]:
        """Returns the function of a loaded op. Raises ValueError for a name without an op."""
        if loaded is None and isinstance(self.function, str):
            raise ValueError(
                f"the case {self.name!r} names the function {self.function!r} of an op, and no op was loaded: expected"
                " the op's builder, which names the case: MODULE:Builder, instead of the case itself"
            )
        found: Callable[..., Any] = (
            getattr(loaded, self.function) if isinstance(self.function, str) else self.function(loaded)
        )
        return found

    def prepare(self, place: Place, loaded: Any = None) -> Prepared:
        """Creates the inputs of a size, for a loaded op."""
        own = replace(place, shape=self.shape(place.size))
        return Prepared(self, own, loaded, self.inputs(own))

    def many(self) -> tuple[tuple[int, ...], ...]:
        """Returns the shapes of which an op makes work for several threads: the least that is timed, and a large one.

        Empty if no shape of the case has an element.
        """
        timed = self.shape(self.sizes[0]) if self.sizes else ()
        found = [timed] if timed else []
        largest = max(self.shapes, key=math.prod, default=())
        if self.large_shape is not None:
            found.append(self.large_shape)
        elif not timed or math.prod(timed) < LARGE:
            rest = math.prod(largest[1:])
            if largest and rest:
                found.append((max(largest[0], -(-LARGE // rest)), *largest[1:]))
        return tuple(found)

    @property
    def measured_dtypes(self) -> tuple[str, ...]:
        """The dtypes that are timed."""
        return self.timed_dtypes or self.dtypes

    def quick_sizes(self) -> tuple[int, ...]:
        """Returns the sizes that --quick measures."""
        return (self.sizes[len(self.sizes) // 2],) if self.quick is None and self.sizes else self.quick or ()

    def goal(self, contender: str, size: int) -> float | None:
        """Returns how many times as fast as a contender ours must be at a size. None if there is no goal."""
        goal = self.goals.get(contender)
        return goal.get(size) if isinstance(goal, Mapping) else goal


def call_of(prepared: Prepared) -> Call:
    """Returns the call of the case's function with its arguments."""
    return partial(prepared.case.bound(prepared.loaded), *prepared.arguments, **prepared.case.keywords)
