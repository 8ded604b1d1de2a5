"""Splits an extension's nvcc flags into the builder's flags and its target's architectures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from opforge.accelerator import archs
from opforge.errors import BuilderError

SUFFIX = ".cu"
GENERATE_FLAGS = ("-gencode", "--generate-code")
UNSUPPORTED_FLAGS = ("-arch", "--gpu-architecture", "-code", "--gpu-code")
"""Flags that choose architectures in a way that no target can express."""
CODE = re.compile(r"arch=compute_(\w+),code=(?:\[([\w,]+)\]|(\w+))")


def without_architectures(name: str, flags: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the flags without those that choose architectures, and the architectures that were chosen.

    If none was chosen, TORCH_CUDA_ARCH_LIST or the devices of the machine decide, as with torch. Raises BuilderError,
    which names the extension, if no target can express the choice.
    """
    others, codes = [], []
    words = iter(flags)
    for word in words:
        option, equals, value = word.partition("=")
        if option in GENERATE_FLAGS:
            codes += _codes(name, value if equals else next(words, ""))
        elif option in UNSUPPORTED_FLAGS:
            raise _unsupported(name, word)
        else:
            others.append(word)
    return tuple(others), archs.canonical("cuda", codes)


def _codes(name: str, value: str) -> list[str]:
    match = CODE.fullmatch(value)
    codes = (match[2] or match[3]).split(",") if match else []
    is_supported = match and all(archs.CUDA.fullmatch(code) and code.partition("_")[2] == match[1] for code in codes)
    if not is_supported:
        raise _unsupported(name, f"-gencode {value}".strip())
    return codes


def _unsupported(name: str, flag: str) -> BuilderError:
    return BuilderError(
        name,
        f"the nvcc flag {flag!r} is not supported",
        "Write -gencode=arch=compute_90,code=sm_90, or set TORCH_CUDA_ARCH_LIST",
    )
