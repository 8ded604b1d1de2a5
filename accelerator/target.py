"""What an op is built for: a device and its architectures, as one frozen value read from one string."""

from __future__ import annotations

from opforge.errors import SettingError

CPU_ARCHS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64", "native")
WITH_RULES = ("cuda", "hip", "xpu")
"""The devices whose architectures `archs.py` reads; of another's, only the letters are checked."""


class Target:
    """A device and the architectures wanted on it, such as `cpu:x86-64-v3` or `cuda:sm_80+sm_90a+ptx`.

    Equal, hashable and immutable; `parse` reads what `str` gives back. Written out rather than declared as a
    dataclass because it lies on the path of every cache hit, and defining a dataclass costs more than the hit's stats.
    """

    __slots__ = ("arch", "device")

    device: str
    arch: tuple[str, ...]

    def __init__(self, device: str, arch: tuple[str, ...] = ()) -> None:
        object.__setattr__(self, "device", device)
        object.__setattr__(self, "arch", arch)

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read `device` or `device:arch+arch`; SettingError names the column of the first thing that is wrong.

        A name such as `Hopper` becomes what it stands for. `native` stands for the machine that builds, and whoever
        builds replaces it by that machine's own architecture.
        """
        device, colon, rest = text.partition(":")
        if not (device.isascii() and device.replace("_", "a").isalnum() and device[0].isalpha()):
            raise SettingError("target", text, f"a device name such as cpu or cuda at column 1, not {device!r}")
        if not colon:
            return cls(device)
        column = len(device) + 2
        if device in WITH_RULES:
            from .archs import read  # not on the way of an op for the CPU

            return cls(device, read(device, rest, column, "target", text))
        words = rest.split("+")
        for index, word in enumerate(words):
            if device == "cpu" and word not in CPU_ARCHS:
                raise SettingError("target", text, f"one of {', '.join(CPU_ARCHS)} at column {column}, not {word!r}")
            if not _is_word(word):
                wrong = column + next((at for at, char in enumerate(word) if not _is_word(char)), 0)
                raise SettingError(
                    "target",
                    text,
                    f"architectures of letters, digits, '_', '.' and '-' joined by '+' at column {wrong}",
                )
            if word in words[:index]:
                raise SettingError(
                    "target", text, f"each architecture once, but {word!r} is repeated at column {column}"
                )
            if device == "cpu" and index:
                raise SettingError(
                    "target", text, f"one level, as a library is built for one, but there is another at column {column}"
                )
            column += len(word) + 1
        return cls(device, tuple(words))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Target cannot be changed: build a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Target cannot be changed: {name!r} stays")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Target) and self.device == other.device and self.arch == other.arch

    def __hash__(self) -> int:
        return hash((self.device, self.arch))

    def __str__(self) -> str:
        return f"{self.device}:{'+'.join(self.arch)}" if self.arch else self.device

    def __repr__(self) -> str:
        return f"Target({str(self)!r})"

    def __reduce__(self) -> tuple[type[Target], tuple[str, tuple[str, ...]]]:
        return Target, (self.device, self.arch)


def _is_word(text: str) -> bool:
    return text.isascii() and text.translate(_PUNCTUATION).isalnum()


_PUNCTUATION = str.maketrans("_.-", "aaa")
