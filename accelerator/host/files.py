"""The kernel's files under /proc and /sys. Tests replace the root by a folder of their own."""

from __future__ import annotations

import os

_MAX_BYTES = 1 << 20


def read_text(root: str, path: str) -> str | None:
    """Returns a file's text. None if it cannot be read, because containers hide many of these files."""
    try:
        handle = os.open(os.path.join(root, path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts: list[bytes] = []
        size = 0
        while size < _MAX_BYTES and (part := os.read(handle, 1 << 16)):
            parts.append(part)
            size += len(part)
        return b"".join(parts).decode("utf-8", "replace")
    except OSError:  # some files can be opened but not read
        return None
    finally:
        os.close(handle)


def read_number(root: str, path: str) -> int | None:
    """Returns a file's one whole number. None if it has none (`max`), or cannot be read."""
    text = (read_text(root, path) or "").strip()
    return int(text) if text.removeprefix("-").isdecimal() else None


def field(text: str | None, name: str) -> int | None:
    """Returns the number after a name at the beginning of a line, as `read_fields` does. None if there is none."""
    if not text:
        return None
    start = 0 if text.startswith(f"{name}:") else text.find(f"\n{name}:") + 1
    if not text.startswith(name, start):
        return None
    start += len(name) + 1
    words = text[start : start + 64].partition("\n")[0].split()
    if not words or not words[0].isdecimal():
        return None
    return int(words[0]) * (1024 if words[1:] == ["kB"] else 1)


def read_fields(root: str, path: str) -> dict[str, int]:
    """Returns the first number after each name in a file such as /proc/meminfo, by name; kB are converted to bytes."""
    fields: dict[str, int] = {}
    for line in (read_text(root, path) or "").splitlines():
        name, *rest = line.replace(":", " ").split()[:3] or [""]
        if rest and rest[0].isdecimal():
            fields[name] = int(rest[0]) * (1024 if rest[1:] == ["kB"] else 1)
    return fields


def parse_list(text: str) -> tuple[int, ...]:
    """Returns the numbers of a kernel list such as `0-3,8`, sorted."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        if first.isdecimal():
            numbers.update(range(int(first), (int(last) if dash else int(first)) + 1))
    return tuple(sorted(numbers))
