"""The target of a build: a device and its architectures, as one frozen value parsed from one string."""

from __future__ import annotations

from opforge import errors

CPU_ARCHS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64", "native")
PARSED_DEVICES = ("cuda", "hip", "xpu")
"""The devices whose architectures `archs.py` parses. For other devices only the characters are checked."""


class Target:
    """A device and its requested architectures, such as `cpu:x86-64-v3` or `cuda:sm_80+sm_90a+ptx`.

    An immutable, hashable value; `parse` reads what `str` returns. It is not a dataclass because every cache hit
    imports it, and defining a dataclass takes longer than all the file checks of a hit.
    """

    __slots__ = ("arch", "device")

    device: str
    arch: tuple[str, ...]

    def __init__(self, device: str, arch: tuple[str, ...] = ()) -> None:
        object.__setattr__(self, "device", device)
        object.__setattr__(self, "arch", arch)

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parses `device` or `device:arch+arch`.

        A name such as `Hopper` is replaced by its architectures. `native` means the architecture of the machine
        that builds, and is replaced when the op is built. Raises SettingError, which names the column of the first
        error.
        """
        if not isinstance(text, str):
            raise errors.SettingError("target", text, "a text such as 'cpu:x86-64-v3', or a Target")
        device, colon, rest = text.partition(":")
        if not (device.isascii() and device.replace("_", "a").isalnum() and device[0].isalpha()):
            raise errors.SettingError("target", text, f"a device name such as cpu or cuda at column 1, not {device!r}")
        if not colon:
            return cls(device)
        column = len(device) + 2
        if device in PARSED_DEVICES:
            from .archs import parse  # a hit on an op for the CPU does not need it

            return cls(device, parse(device, rest, column, "target", text))
        words = rest.split("+")
        for index, word in enumerate(words):
            if device == "cpu" and word not in CPU_ARCHS:
                raise errors.SettingError(
                    "target", text, f"one of {', '.join(CPU_ARCHS)} at column {column}, not {word!r}"
                )
            if not _is_word(word):
                error_column = column + next((index for index, char in enumerate(word) if not _is_word(char)), 0)
                raise errors.SettingError(
                    "target",
                    text,
                    f"architectures of letters, digits, '_', '.' and '-' joined by '+' at column {error_column}",
                )
            if word in words[:index]:
                raise errors.SettingError(
                    "target", text, f"each architecture once, but {word!r} is repeated at column {column}"
                )
            if device == "cpu" and index:
                raise errors.SettingError(
                    "target", text, f"one level, because a library has one, but there is another at column {column}"
                )
            column += len(word) + 1
        return cls(device, tuple(words))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Target cannot be changed: build a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Target cannot be changed: {name!r} cannot be deleted")

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
