"""Which hosts, and which slots of each: the hostfile, --include and --exclude, --num-accelerators."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opforge.errors import HostfileError, SettingError

LINE = "a line such as `worker-1 slots=4`"
SELECTION = "hosts joined by @, each with its slots or without, such as worker-1@worker-2:0,2"
_NAME = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.:@%\[\]-]*")


@dataclass(frozen=True)
class Host:
    """One host of the job."""

    name: str
    """As the hostfile has it: a name or an address, perhaps with `user@` before it."""
    slots: int
    """The slots of the host: its cores are shared out among all of them, used or not."""
    chosen: tuple[int, ...]
    """The slots that get a process, by number; local rank i takes the i-th of them."""

    @property
    def address(self) -> str:
        """The name without its user."""
        return self.name.rpartition("@")[2]

    @classmethod
    def whole(cls, name: str, slots: int) -> Host:
        """A host with all its slots in use."""
        return cls(name, slots, tuple(range(slots)))


def read_hostfile(path: str) -> tuple[Host, ...]:
    """The hosts of a file of `name slots=N` lines, in its order; # begins a comment. Raises HostfileError."""
    try:
        with open(path, encoding="utf-8-sig") as file:  # some editors begin a file with a mark
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise SettingError("--hostfile", path, f"a text file that can be read ({problem})") from problem
    hosts: dict[str, Host] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, *rest = words
        found = re.fullmatch(r"slots=([0-9]{1,6})", rest[0]) if len(rest) == 1 else None
        if found is None or not _NAME.fullmatch(name):
            raise HostfileError(path, number, line.strip(), "it does not parse", LINE)
        if not int(found[1]):
            raise HostfileError(path, number, line.strip(), "a host without a slot runs nothing", "slots=1 or more")
        if name in hosts:
            raise HostfileError(
                path, number, line.strip(), f"the host {name!r} was named before", "each host once, with all its slots"
            )
        hosts[name] = Host.whole(name, int(found[1]))
    if not hosts:
        raise HostfileError(path, max(1, len(lines)), "", "the file names no host", LINE)
    return tuple(hosts.values())


def select(hosts: Sequence[Host], include: str = "", exclude: str = "") -> tuple[Host, ...]:
    """The hosts and slots that --include leaves, or those that --exclude does not take away."""
    if include and exclude:
        raise SettingError("--exclude", exclude, "either --include or --exclude, not both")
    if include:
        wanted = _parse("--include", include, hosts)
        return tuple(replace(host, chosen=wanted[host.name]) for host in hosts if host.name in wanted)
    if exclude:
        unwanted = _parse("--exclude", exclude, hosts)
        left = [
            replace(host, chosen=tuple(slot for slot in host.chosen if slot not in unwanted.get(host.name, ())))
            for host in hosts
        ]
        kept = tuple(host for host in left if host.chosen)
        if not kept:
            raise SettingError("--exclude", exclude, "a slot to be left")
        return kept
    return tuple(hosts)


def first_slots(hosts: Sequence[Host], count: int) -> tuple[Host, ...]:
    """The hosts with the first `count` of their chosen slots. Raises SettingError where one has fewer."""
    for host in hosts:
        if len(host.chosen) < count:
            expected = f"at most {len(host.chosen)}, which is what {host.name} has"
            raise SettingError("--num-accelerators", count, expected)
    return tuple(replace(host, chosen=host.chosen[:count]) for host in hosts)


def _parse(option: str, text: str, hosts: Sequence[Host]) -> dict[str, tuple[int, ...]]:
    by_name = {host.name: host for host in hosts}
    found: dict[str, tuple[int, ...]] = {}
    for part in text.split("@"):
        name, colon, listed = part.strip().rpartition(":")
        if not colon or part.strip() in by_name:  # an IPv6 address has colons of its own
            name, colon = part.strip(), ""
        if name not in by_name:
            raise SettingError(option, text, f"{SELECTION}; the hosts are {', '.join(by_name)}")
        if name in found:
            raise SettingError(option, text, f"{SELECTION}; {name} is named twice")
        slots = listed.split(",") if colon else [str(slot) for slot in by_name[name].chosen]
        if not all(slot.isascii() and slot.isdecimal() for slot in slots):
            raise SettingError(option, text, SELECTION)
        numbers = tuple(sorted({int(slot) for slot in slots}))
        for slot in numbers:
            if slot not in by_name[name].chosen:
                raise SettingError(option, text, f"slots that {name} has: 0 to {by_name[name].slots - 1}, not {slot}")
        found[name] = numbers
    return found
