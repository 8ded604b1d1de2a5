"""How often this user's processes on this machine found an op, built it or waited for it.

    counts          lines of JSON, one for each process and store: [seconds since the epoch, store, {name: amount}]
    counts.NUMBER   the same, set aside: a process that had opened it before may still append to it
    counts.json     the sums of what was set aside, by store and by day

Each process appends its line when it ends (`fast_path.lookup.count`). Once the file is long, a process
that enforces the store's limits sets it aside, and adds up what was set aside before.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from opforge.foundation import formats, remembered_values
from opforge.foundation.files import make_folder, read_file, read_json, write_file
from opforge.foundation.remembered_values import UNREADABLE
from opforge.foundation.remembered_values_writer import COUNTS, MAX_COUNTS_BYTES

NAMES = ("cached", "prebuilt", "missed", "built", "failed", "waited", "saved", "building", "waiting")
"""Names of the counts: look-ups that found an entry in the store, or in a layer or a remote; look-ups that found none;
their outcomes; then seconds: saved by hits, spent in builds, spent waiting."""
SUMS = f"{COUNTS}.json"
DAYS = 30
"""How many days have sums of their own."""
MAX_STORES = 256
"""How many stores are counted. Above that those that were not used for longest are dropped."""
GRACE_SECONDS = 60.0
"""How long a file that was set aside is left before it is added up."""

Amounts = dict[str, float]


class Period(NamedTuple):
    """The counts of a period."""

    since: float
    """When it began, in seconds since the epoch; 0 if that is not known."""
    amounts: Amounts

    @property
    def hits(self) -> int:
        """How many look-ups found an entry."""
        return int(self.amounts["cached"] + self.amounts["prebuilt"])

    @property
    def misses(self) -> int:
        """How many look-ups found none."""
        return int(self.amounts["missed"])

    @property
    def rate(self) -> float | None:
        """The share of hits in all look-ups; None if there was none."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else None

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `opforge cache stats --json` prints: its names are public."""
        fields: dict[str, Any] = {"since": self.since or None, "hits": self.hits, "misses": self.misses}
        fields |= {"rate": self.rate}
        for name in NAMES:
            seconds = name in ("saved", "building", "waiting")
            fields[f"{name}_seconds" if seconds else name] = round(self.amounts[name], 3 if seconds else None)
        return fields


class Counts(NamedTuple):
    """The counts of one store."""

    today: Period
    days: Period
    """The last DAYS days."""
    since_zero: Period | None
    """Since `zero`; None if it was never called."""
    all: Period


def read(store: str) -> Counts:
    """Returns the counts of a store by this user's processes on this machine. Changes nothing."""
    sums = _Sums()
    for folder in _folders():
        with _locked(folder):
            sums.add_sums(_read_sums(folder))
            for path in _logs(folder, set(_read_sums(folder).get("folded", ()))):
                sums.add_log(path)
    return sums.counts(store)


def zero(store: str) -> bool:
    """Begins a new count of a store; all that was counted before stays. Returns whether that could be written."""
    now = read(store).all.amounts
    for folder in remembered_values.folders():
        with suppress(OSError):
            make_folder(folder)
            if not remembered_values.is_private(folder):
                continue
            with _locked(folder):
                data = _read_sums(folder)
                stores = data.setdefault("stores", {})
                stores.setdefault(store, {})["zeroed"] = {"at": time.time(), "all": now}
                _write_sums(folder, data)
            return True
    return False


def fold() -> None:
    """Sets the file of counts aside if it is long, and adds up what was set aside before.

    Nothing is done while another process does it, or if it fails: the next process tries again.
    """
    for folder in _folders():
        with suppress(OSError):
            if os.stat(os.path.join(folder, COUNTS)).st_size > MAX_COUNTS_BYTES:
                with _locked(folder) as is_locked:
                    if is_locked:
                        _fold(folder)


def _fold(folder: str) -> None:
    data, sums = _read_sums(folder), _Sums()
    folded = {name for name in data.get("folded", ()) if os.path.exists(os.path.join(folder, str(name)))}
    for name in folded:  # a process that was killed has left it
        os.unlink(os.path.join(folder, str(name)))
    sums.add_sums(data)
    now = time.time()
    aside = [path for path in _logs(folder, ()) if os.path.basename(path) != COUNTS]
    old = [path for path in aside if now - os.stat(path).st_ctime > GRACE_SECONDS or len(aside) > 8]
    for path in old:
        sums.add_log(path)
    if old:
        # Written before the files are removed, and with their names: otherwise they could be added twice, or never.
        _write_sums(folder, sums.to_json([os.path.basename(path) for path in old]))
        for path in old:
            os.unlink(path)
    path = os.path.join(folder, COUNTS)
    os.rename(path, f"{path}.{time.time_ns()}")


class _Sums:
    """Sums by store and day."""

    def __init__(self) -> None:
        self.days: dict[str, dict[str, Amounts]] = {}
        self.all: dict[str, Amounts] = {}
        self.since: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.zeroed: dict[str, tuple[float, Amounts]] = {}

    def add_log(self, path: str) -> None:
        """Adds the lines of a file. One that is not readable is left out."""
        try:
            lines = read_file(path).splitlines()
        except (OSError, ValueError):
            return
        for line in lines:
            try:
                at, store, amounts = json.loads(line)
                day = time.strftime("%Y-%m-%d", time.localtime(at))
                checked = _checked(amounts)
            except UNREADABLE:  # a machine's own note: it may be lost, whatever it holds
                continue
            _add(self.days.setdefault(str(store), {}).setdefault(day, {}), checked)
            self._add_all(str(store), checked, at, at)

    def add_sums(self, data: Mapping[str, Any]) -> None:
        """Adds the sums of a file. A store that is not readable is left out."""
        for store, sums in data.get("stores", {}).items():
            with suppress(*UNREADABLE):  # a machine's own note: it may be lost, whatever it holds
                if "all" in sums:
                    for day, amounts in sums["days"].items():
                        _add(self.days.setdefault(store, {}).setdefault(day, {}), _checked(amounts))
                    self._add_all(store, _checked(sums["all"]), float(sums["since"]), float(sums["last"]))
                if "zeroed" in sums:
                    zeroed = float(sums["zeroed"]["at"]), _checked(sums["zeroed"]["all"])
                    self.zeroed[store] = max(zeroed, self.zeroed.get(store, zeroed), key=lambda item: item[0])

    def _add_all(self, store: str, amounts: Amounts, first: float, last: float) -> None:
        _add(self.all.setdefault(store, {}), amounts)
        self.since[store] = min(first, self.since.get(store, first))
        self.last[store] = max(last, self.last.get(store, last))

    def counts(self, store: str) -> Counts:
        """Returns the sums of one store."""
        now = time.time()
        days, whole = self.days.get(store, {}), _whole(self.all.get(store, {}))
        begin = time.strftime("%Y-%m-%d", time.localtime(now - (DAYS - 1) * 24 * 3600))
        today, recent = _whole(days.get(time.strftime("%Y-%m-%d"), {})), _whole({})
        for day, amounts in days.items():
            if day >= begin:
                _add(recent, amounts)
        since_zero = None
        if store in self.zeroed:
            at, before = self.zeroed[store]
            since_zero = Period(at, {name: max(0, whole[name] - before.get(name, 0)) for name in NAMES})
        return Counts(Period(0, today), Period(0, recent), since_zero, Period(self.since.get(store, 0.0), whole))

    def to_json(self, folded: list[str]) -> dict[str, Any]:
        """Returns the form that `add_sums` reads."""
        recent = sorted({*self.all, *self.zeroed}, key=lambda store: -self.last.get(store, 0.0))[:MAX_STORES]
        stores: dict[str, Any] = {store: {} for store in recent}
        for store, sums in stores.items():
            if store in self.all:
                days = self.days.get(store, {})
                sums |= {"days": {day: days[day] for day in sorted(days)[-DAYS:]}, "all": self.all[store]}
                sums |= {"since": self.since[store], "last": self.last[store]}
            if store in self.zeroed:
                sums["zeroed"] = dict(zip(("at", "all"), self.zeroed[store], strict=True))
        return {"folded": folded, "stores": stores}


def _add(sums: Amounts, amounts: Mapping[str, float]) -> None:
    for name, amount in amounts.items():
        sums[name] = sums.get(name, 0) + amount


def _whole(amounts: Mapping[str, float]) -> Amounts:
    return {name: amounts.get(name, 0) for name in NAMES}


def _checked(amounts: Any) -> Amounts:
    """Returns the amounts that are counted. Raises ValueError or another of UNREADABLE for anything else."""
    checked = {name: amounts[name] for name in NAMES if name in amounts}
    if not all(type(value) in (int, float) and 0 <= value < 1e15 for value in checked.values()):
        raise ValueError("not amounts")
    return checked


def _folders() -> list[str]:
    """Returns the folders that may hold counts, and that only this user can have written."""
    folders = []
    for folder in remembered_values.folders():
        with suppress(OSError):
            if remembered_values.is_private(folder):
                folders.append(folder)
    return folders


def _logs(folder: str, folded: Any) -> list[str]:
    """Returns the files of lines, except those that were added up already."""
    names = [name for name in os.listdir(folder) if name == COUNTS or name.removeprefix(f"{COUNTS}.").isdecimal()]
    return [os.path.join(folder, name) for name in sorted(names) if name not in folded]


def _read_sums(folder: str) -> dict[str, Any]:
    with suppress(*UNREADABLE):  # a machine's own note: it may be lost, whatever it holds
        data = read_json(os.path.join(folder, SUMS))
        if isinstance(data, dict) and data["format"] == formats.COUNTS and isinstance(data["stores"], dict):
            return data
    return {}


def _write_sums(folder: str, data: Mapping[str, Any]) -> None:
    write_file(os.path.join(folder, SUMS), json.dumps({**data, "format": formats.COUNTS}).encode())


@contextmanager
def _locked(folder: str) -> Iterator[bool]:
    """Holds the lock of the sums; yields whether it is held. It is not if another process holds it for long."""
    import filelock

    lock = filelock.FileLock(os.path.join(folder, f"{COUNTS}.lock"), mode=0o600, timeout=1, fallback_to_soft=False)
    try:
        lock.acquire()
    except (OSError, filelock.Timeout):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
