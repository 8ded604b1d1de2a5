"""The text to train on: the source files of Python's standard library, which every machine has."""

from __future__ import annotations

import os
import sysconfig
from typing import NamedTuple

import torch
from torch import Tensor

SIZE = 1_500_000
"""The approximate number of characters to read."""


class Corpus(NamedTuple):
    """A text as numbers, one for each character."""

    codes: Tensor  # int64 [characters]
    alphabet: int
    files: int

    def batch(self, count: int, length: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns `count` random stretches of `length` characters, and for each character the one after it."""
        starts = torch.randint(len(self.codes) - length - 1, (count, 1), generator=random)
        positions = starts + torch.arange(length + 1)
        text = self.codes[positions]
        return text[:, :-1], text[:, 1:]


def read(size: int = SIZE) -> Corpus:
    """Returns the library's top-level modules in the order of their names, until there are `size` characters.

    Characters outside of ASCII become question marks.
    """
    folder = sysconfig.get_path("stdlib")
    texts, length = [], 0
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py") and length < size:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
            length += len(texts[-1])
    raw = "\n".join(texts).encode("ascii", "replace")
    values, codes = torch.frombuffer(bytearray(raw), dtype=torch.uint8).unique(return_inverse=True)
    return Corpus(codes, len(values), len(texts))
