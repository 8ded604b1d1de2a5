"""The results of a run, and their file: JSON, with a version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.keys import strict
from opforge.errors import BenchFileError
from opforge.foundation import formats
from opforge.ops.cases.case import OURS, UNITS

from . import machine, texts
from .medians import METHOD, Median, fastest, median, speed_ratio

FORMAT, VERSION = "opforge-bench", formats.BENCH
BASELINE = "baseline"
WALL, PROCESSOR = "wall time", "processor time"
BUSY = 0.1
"""The share of a sample that threads may wait for a processor: above it, wall times are the other programs' too."""
ONE_THREAD = 0.1
"""How far the processor time and the waiting time of a call in one thread may be from its wall time, as a share."""


class Verdict(NamedTuple):
    """One goal of a result."""

    what: str
    """The meaning of the figure: "of torch"."""
    value: float
    goal: float
    is_met: bool | None
    """None if it cannot be judged."""
    reason: str = ""
    """Why it cannot be judged."""

    @property
    def figure(self) -> str:
        """The figure and the goal: "1.2 of torch, goal 1"."""
        return f"{texts.number(self.value)} {self.what}, goal {self.goal:g}"

    @property
    def outcome(self) -> str:
        """Whether the goal is met, in words."""
        return {True: "met", False: "missed", None: f"not judged, {self.reason}"}[self.is_met]


class Key(NamedTuple):
    """The key by which results of two runs are compared."""

    op: str
    case: str
    size: int
    dtype: str
    device: str


@dataclass
class Result:
    """The samples of one case at one size and dtype."""

    op: str
    case: str
    size: int
    size_unit: str
    dtype: str
    device: str
    unit: str
    amount: float
    """The amount of work of one call, for the rate: bytes, requests."""
    baseline: list[str]
    samples: dict[str, list[float]] = field(default_factory=dict)
    """Contender -> seconds of one call, for each round. Samples of one round belong together."""
    processor: dict[str, list[float]] = field(default_factory=dict)
    """Contender -> processor seconds of one call, for contenders on the host."""
    waited: dict[str, list[float]] = field(default_factory=dict)
    """Contender -> seconds for which its threads waited for a processor in one call, for contenders on the host."""
    inner: dict[str, int] = field(default_factory=dict)
    """Contender -> calls in one sample."""
    missing: dict[str, str] = field(default_factory=dict)
    """Contender -> why it took no part."""
    goals: dict[str, float] = field(default_factory=dict)
    """Contender or "baseline" -> how many times as fast ours must be."""
    processor_goals: dict[str, float] = field(default_factory=dict)
    own_work: float = 0.0
    """The largest share of a sample that the harness itself took."""

    @property
    def key(self) -> Key:
        """The key by which the result is compared."""
        return Key(self.op, self.case, self.size, self.dtype, self.device)

    @property
    def busy(self) -> float:
        """The largest share of a contender's samples for which its threads waited for a processor."""
        return max((median(_shares(times, self.samples[name])).value for name, times in self.waited.items()), default=0)

    @property
    def clock(self) -> str:
        """The clock of the figures: WALL, or PROCESSOR if the machine was busy and each call has one thread."""
        return PROCESSOR if self.busy > BUSY and all(map(self._has_one_thread, self.samples)) else WALL

    @property
    def is_too_busy(self) -> bool:
        """Whether the figures are those of the other programs on the machine, too."""
        return self.busy > BUSY and self.clock == WALL

    def _has_one_thread(self, contender: str) -> bool:
        """Returns whether a contender's calls computed or waited for a processor all the time, in one thread."""
        own = zip(self.processor.get(contender, []), self.waited.get(contender, []), strict=False)
        shares = _shares([processor + waited for processor, waited in own], self.samples[contender])
        return bool(shares) and abs(median(shares).value - 1) <= ONE_THREAD

    def times(self, contender: str) -> list[float]:
        """Returns the seconds of one call in each round, by `clock`. Empty without samples."""
        samples = self.processor if self.clock == PROCESSOR else self.samples
        return samples.get(contender, [])

    def time(self, contender: str) -> Median:
        """Returns the seconds of one call: those of the baseline, over how many times as fast the contender is.

        So what is printed as a rate and what is printed as a ratio have one order, whatever slowed a round down.
        """
        speed = self.speed(contender)
        if speed is None or self.baseline == [contender]:
            return median(self.times(contender))
        baseline = median(self.baseline_times()).value
        return Median(baseline / speed.value, baseline / speed.high, baseline / speed.low)

    def rate(self, contender: str) -> Median:
        """Returns a contender's work in a second, in the result's unit; for the unit us, the microseconds of a call."""
        seconds = self.time(contender)
        if self.unit not in UNITS:
            return Median(*(value * 1e6 for value in seconds))
        factor = self.amount / UNITS[self.unit]
        return Median(factor / seconds.value, factor / seconds.high, factor / seconds.low)

    def baseline_times(self) -> list[float]:
        """Returns the baseline's seconds in each round: those of the fastest contender of `baseline`."""
        return fastest({name: self.times(name) for name in self.samples}, self.baseline)

    def speed(self, contender: str, against: str = BASELINE) -> Median | None:
        """Returns how many times as fast as another one a contender is, or as the baseline. None without samples."""
        baseline = self.baseline_times() if against == BASELINE else self.times(against)
        own = self.times(contender)
        return speed_ratio(own, baseline) if own and baseline else None

    def processor_ratio(self, against: str) -> Median | None:
        """Returns how many times another contender's processor time ours takes. None if it was not measured."""
        own, other = self.processor.get(OURS, []), self.processor.get(against, [])
        pairs = [(a, b) for a, b in zip(own, other, strict=False) if a > 0 and b > 0]
        return median([a / b for a, b in pairs]) if pairs else None

    def verdicts(self) -> list[Verdict]:
        """Returns the goals for which there is a figure, each with whether it is met."""
        rows = []
        for name, goal in self.goals.items():
            if speed := self.speed(OURS, name):
                waiting = f"threads waited {self.busy:.0%} of the time for a processor"
                busy = f"the machine was too busy: {waiting}" if self.is_too_busy else ""
                rows.append(_verdict(f"of {name}", speed, goal, speed.low >= goal, speed.high < goal, busy))
        for name, goal in self.processor_goals.items():
            if share := self.processor_ratio(name):
                what = f"of the processor time of {name}"
                rows.append(_verdict(what, share, goal, share.high <= goal, share.low > goal, ""))
        return rows


def _shares(parts: Sequence[float], wholes: Sequence[float]) -> list[float]:
    return [part / whole for part, whole in zip(parts, wholes, strict=False)]


def _verdict(what: str, figure: Median, goal: float, is_met: bool, is_missed: bool, busy: str) -> Verdict:
    """Returns whether a goal is met: only if the whole interval of the figure is on one side of it."""
    if busy or not (is_met or is_missed):
        spread = f"the interval {texts.interval(figure)} has the goal in it"
        return Verdict(what, figure.value, goal, None, busy or spread)
    return Verdict(what, figure.value, goal, is_met)


@dataclass
class Run:
    """All results of one run, with what they were measured on."""

    machine: dict[str, Any]
    device: str
    quick: bool
    results: list[Result] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Op, or op and case -> why it was not measured."""
    load_before: list[float] = field(default_factory=list)
    load_after: list[float] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    """Whether Ctrl-C ended the run before everything was measured."""

    def to_json(self) -> dict[str, Any]:
        """Returns the run with all samples, and with the figures that they amount to."""
        record = {"format": FORMAT, "version": VERSION, "method": METHOD, **asdict(self)}
        for result, row in zip(self.results, record["results"], strict=True):
            row["figures"] = {
                name: {"seconds": result.time(name), "of_baseline": result.speed(name)} for name in result.samples
            }
        return record

    def by_key(self) -> dict[Key, Result]:
        """Returns the results by what they are compared by."""
        return {result.key: result for result in self.results}


def read(path: str) -> Run:
    """Returns the run in a file.

    Raises:
        BenchFileError: The file cannot be read, is truncated, is none of these files, or has another version.
    """
    advice = "Write it again with `opforge bench --json FILE`"
    try:
        with open(path, "rb") as file:
            record = strict(file.read())
    except OSError as error:
        raise BenchFileError(path, f"it cannot be read: {error.strerror}", "Correct the path") from error
    except (ValueError, RecursionError) as error:
        raise BenchFileError(path, f"it is truncated, or not JSON: {error}", advice) from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise BenchFileError(path, "it is not a file of `opforge bench`", advice)
    if record.get("version") != VERSION:
        problem = f"its format has the version {record.get('version')!r}, expected {VERSION}"
        raise BenchFileError(path, problem, f"{advice} of this opforge, or read it with the opforge that wrote it")
    try:
        return _run(record)
    except ValueError as error:
        raise BenchFileError(path, f"it is damaged: {error}", advice) from error


TIMES = schema.items(schema.number(0, 1e9, "a positive number"), least=1)
OTHER_TIMES = schema.items(schema.NUMBER, least=1)
RESULT = schema.record(
    {
        **dict.fromkeys(("op", "case", "size_unit", "dtype", "device", "unit"), schema.TEXT),
        "size": schema.WHOLE,
        "amount": schema.NUMBER,
        "baseline": schema.TEXTS,
        "samples": schema.table(TIMES),
        **dict.fromkeys(("processor", "waited"), schema.table(OTHER_TIMES)),
        "inner": schema.table(schema.WHOLE),
        "missing": schema.table(schema.TEXT),
        **dict.fromkeys(("goals", "processor_goals"), schema.table(schema.NUMBER)),
        "own_work": schema.NUMBER,
    },
    is_open=True,  # the figures are computed again
)
FACTS = {**dict.fromkeys(machine.FACTS, schema.TEXT), **dict.fromkeys(("cores", "memory", "threads"), schema.WHOLE)}
RUN = schema.record(
    {
        "machine": schema.record(FACTS, is_open=True),
        "device": schema.TEXT,
        **dict.fromkeys(("quick", "interrupted"), schema.FLAG),
        "results": schema.items(RESULT),
        "missing": schema.table(schema.TEXT),
        **dict.fromkeys(("load_before", "load_after"), schema.items(schema.NUMBER)),
        "seconds": schema.NUMBER,
    },
    is_open=True,
)


def _run(record: Mapping[str, Any]) -> Run:
    """Returns the run in a file's record. Raises ValueError."""
    schema.checked(record, RUN)
    names = [item.name for item in fields(Result)]
    results = [Result(**{name: row[name] for name in names}) for row in record["results"]]
    for result in results:
        lengths = {len(times) for times in result.samples.values()}
        if len(lengths) != 1 or not {OURS, *result.processor, *result.waited} <= result.samples.keys():
            raise ValueError(f"{result.op}, {result.case}: the contenders have {sorted(lengths)} samples")
    names = [item.name for item in fields(Run) if item.name != "results"]
    return Run(results=results, **{name: record[name] for name in names})


def check_machine(path: str, old: Mapping[str, Any], new: Mapping[str, Any], here: str = "this machine") -> None:
    """Checks that two runs are of the same machine. Raises BenchFileError: times of two machines say nothing."""
    if other := machine.differences(old, new):
        listed = "; ".join(f"{name}: {before} there, {now} on {here}" for name, before, now in other)
        advice = "Measure on the same machine: check out the old version, and run `opforge bench --json FILE` here"
        raise BenchFileError(path, f"it was measured on another machine ({listed})", advice)


def ordered_contenders(results: Sequence[Result]) -> list[str]:
    """Returns the contenders of results, ours first and the baseline last."""
    names = list(dict.fromkeys(name for result in results for name in result.samples))
    baseline = {name for result in results for name in result.baseline}
    return sorted(names, key=lambda name: (name in baseline, name != OURS))
