"""Reads MessagePack, in which AMD's code objects describe their kernels: https://github.com/msgpack/msgpack."""

from __future__ import annotations

import struct
from typing import Any

from .reader import Reader, printable

MAX_DEPTH = 32
"""How deep arrays and maps may be nested. AMD's metadata needs six levels."""
CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
NUMBERS = {0xCA + number: struct.Struct(">" + letter) for number, letter in enumerate("fdBHIQbhiq")}
TEXTS = {0xD9 + number: struct.Struct(">" + letter) for number, letter in enumerate("BHI")}
ARRAYS = {0xDC + number: struct.Struct(">" + letter) for number, letter in enumerate("HI")}
MAPS = {0xDE + number: struct.Struct(">" + letter) for number, letter in enumerate("HI")}
FORM = struct.Struct("B")


class _Unpacker:
    def __init__(self, packed: Reader) -> None:
        self._packed, self.at = packed, 0

    def _take(self, layout: struct.Struct) -> Any:
        (value,) = self._packed.unpack(layout, self.at, "a value")
        self.at += layout.size
        return value

    def _text(self, size: int) -> str:
        content = self._packed.content(self.at, size, "a text")
        self.at += size
        return printable(content)

    def value(self, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise self._packed.damaged(f"its values are nested more than {MAX_DEPTH} times")
        form = self._take(FORM)
        if form < 0x80:
            return form
        if form >= 0xE0:
            return form - 0x100
        if form < 0x90:
            return self._map(form & 15, depth)
        if form < 0xA0:
            return self._array(form & 15, depth)
        if form < 0xC0:
            return self._text(form & 31)
        if form in CONSTANTS:
            return CONSTANTS[form]
        if form in NUMBERS:
            return self._take(NUMBERS[form])
        if form in TEXTS:
            return self._text(self._take(TEXTS[form]))
        if form in ARRAYS:
            return self._array(self._take(ARRAYS[form]), depth)
        if form in MAPS:
            return self._map(self._take(MAPS[form]), depth)
        raise self._packed.damaged(f"byte {self.at - 1} begins no value that AMD's metadata has ({form:#x})")

    def _array(self, count: int, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(count)]  # each takes a byte at least, so a wrong count ends soon

    def _map(self, count: int, depth: int) -> dict[Any, Any]:
        pairs: dict[Any, Any] = {}
        for _ in range(count):
            key = self.value(depth + 1)
            if isinstance(key, (list, dict)):
                raise self._packed.damaged("a key of a map is an array or a map")
            pairs[key] = self.value(depth + 1)
        return pairs


def unpack(packed: Reader) -> Any:
    """Returns the value. Raises FileFormatError if it is damaged, or of a type that AMD's metadata lacks."""
    unpacker = _Unpacker(packed)
    value = unpacker.value()
    if unpacker.at != len(packed):
        raise packed.damaged(f"after its value there are {len(packed) - unpacker.at} more bytes")
    return value
