"""The hosts of a job and their slots: the hostfile, --include and --exclude, --num-accelerators."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opforge.errors import HostfileError, SettingError

LINE_FORMAT = "a line such as `worker-1 slots=4`"
SELECTION_FORMAT = "hosts joined by @, with or without slots, such as worker-1@worker-2:0,2"
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_NAME = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.:@%\[\]-]*")


@dataclass(frozen=True)
class Host:
    """One host of the job."""

    name: str
    """A host name or an address, perhaps preceded by `user@`, as in the hostfile."""
    slots: int
    """The slots of the host. Its cores are shared out among all of them, used or not."""
    chosen: tuple[int, ...]
    """The numbers of the slots that get a process: local rank i gets chosen[i]."""

    @property
    def address(self) -> str:
        """The name without its user."""
        return self.name.rpartition("@")[2]

    @property
    def is_local(self) -> bool:
        """Whether the host is this machine, by its name."""
        own = socket.gethostname()
        return self.name in LOCAL_NAMES or self.name in (own, own.partition(".")[0])

    @classmethod
    def whole(cls, name: str, slots: int) -> Host:
        """Returns a host of which all slots are in use."""
        return cls(name, slots, tuple(range(slots)))


def read_hostfile(path: str) -> tuple[Host, ...]:
    """Returns the hosts of a file with lines `name slots=N`, in its order. # begins a comment.

    Raises HostfileError for a line, SettingError for a file that cannot be read.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:  # some editors begin a file with a byte order mark
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError("--hostfile", path, f"a readable text file ({error})") from error
    hosts: dict[str, Host] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, *rest = words
        slots = re.fullmatch(r"slots=([0-9]{1,6})", rest[0]) if len(rest) == 1 else None
        if slots is None or not _NAME.fullmatch(name):
            raise HostfileError(path, number, line.strip(), "it does not parse", LINE_FORMAT)
        if not int(slots[1]):
            raise HostfileError(path, number, line.strip(), "a host without a slot runs nothing", "slots=1 or more")
        if name in hosts:
            problem, expected = f"the host {name!r} was named before", "each host once, with all its slots"
            raise HostfileError(path, number, line.strip(), problem, expected)
        hosts[name] = Host.whole(name, int(slots[1]))
    if not hosts:
        raise HostfileError(path, max(1, len(lines)), "", "the file names no host", LINE_FORMAT)
    return tuple(hosts.values())


def select(hosts: Sequence[Host], include: str = "", exclude: str = "") -> tuple[Host, ...]:
    """Returns the hosts with the slots that --include names, or with those that --exclude does not name.

    Raises SettingError.
    """
    if include and exclude:
        raise SettingError("--exclude", exclude, "either --include or --exclude, not both")
    if include:
        included = _parse_selection("--include", include, hosts)
        return tuple(replace(host, chosen=included[host.name]) for host in hosts if host.name in included)
    if exclude:
        excluded = _parse_selection("--exclude", exclude, hosts)
        remaining = [
            replace(host, chosen=tuple(slot for slot in host.chosen if slot not in excluded.get(host.name, ())))
            for host in hosts
        ]
        used = tuple(host for host in remaining if host.chosen)
        if not used:
            raise SettingError("--exclude", exclude, "at least one slot that is not excluded")
        return used
    return tuple(hosts)


def first_slots(hosts: Sequence[Host], count: int) -> tuple[Host, ...]:
    """Returns the hosts with the first `count` of their chosen slots. Raises SettingError if one has fewer."""
    for host in hosts:
        if len(host.chosen) < count:
            raise SettingError("--num-accelerators", count, f"at most {len(host.chosen)}, the slots of {host.name}")
    return tuple(replace(host, chosen=host.chosen[:count]) for host in hosts)


def _parse_selection(option: str, text: str, hosts: Sequence[Host]) -> dict[str, tuple[int, ...]]:
    by_name = {host.name: host for host in hosts}
    selection: dict[str, tuple[int, ...]] = {}
    for part in text.split("@"):
        name, colon, slot_list = part.strip().rpartition(":")
        if not colon or part.strip() in by_name:  # the colons of an IPv6 address belong to the name
            name, colon = part.strip(), ""
        if name not in by_name:
            raise SettingError(option, text, f"{SELECTION_FORMAT}; the hosts are {', '.join(by_name)}")
        if name in selection:
            raise SettingError(option, text, f"{SELECTION_FORMAT}; {name} is named twice")
        slots = slot_list.split(",") if colon else [str(slot) for slot in by_name[name].chosen]
        if not all(slot.isascii() and slot.isdecimal() for slot in slots):
            raise SettingError(option, text, SELECTION_FORMAT)
        numbers = tuple(sorted({int(slot) for slot in slots}))
        for slot in numbers:
            if slot not in by_name[name].chosen:
                raise SettingError(option, text, f"slots that {name} has: 0 to {by_name[name].slots - 1}, not {slot}")
        selection[name] = numbers
    return selection
