"""What an extension with CUDA sources tells nvcc, as an opforge builder takes it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from opforge.accelerator import archs
from opforge.errors import BuilderError

SUFFIX = ".cu"
GENERATE = ("-gencode", "--generate-code")
CHOOSE = ("-arch", "--gpu-architecture", "-code", "--gpu-code")
CODE = re.compile(r"arch=compute_(\w+),code=(?:\[([\w,]+)\]|(\w+))")


def without_architectures(name: str, flags: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The flags without those that say what to compile for, and the architectures that these say; none, as torch has
    it, where TORCH_CUDA_ARCH_LIST or the devices here are to tell.

    BuilderError, which names the extension, where they are chosen in a way that no target can say.
    """
    kept, codes = [], []
    words = iter(flags)
    for word in words:
        option, equals, value = word.partition("=")
        if option in GENERATE:
            codes += _codes(name, value if equals else next(words, ""))
        elif option in CHOOSE:
            raise _refusal(name, word)
        else:
            kept.append(word)
    return tuple(kept), archs.canonical("cuda", codes)


def _codes(name: str, value: str) -> list[str]:
    found = CODE.fullmatch(value)
    codes = (found[2] or found[3]).split(",") if found else []
    known = found and all(archs.CUDA.fullmatch(one) and one.partition("_")[2] == found[1] for one in codes)
    if not known:
        raise _refusal(name, f"-gencode {value}".strip())
    return codes


def _refusal(name: str, flag: str) -> BuilderError:
    return BuilderError(
        name, f"nvcc is given {flag!r}", "Write -gencode=arch=compute_90,code=sm_90, or set TORCH_CUDA_ARCH_LIST"
    )
