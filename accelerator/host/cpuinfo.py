"""The processor's vector features and level: the level from the C library if it has it, else from /proc/cpuinfo.

The levels are those of the x86-64 psABI, "Micro-Architecture Levels". The kernel lists a feature only if it also saves
the registers that the feature needs. Only the first core is read, so cores of different kinds are not distinguished.
"""

from __future__ import annotations

import os
from functools import cache

_LEVELS = (
    ("x86-64", frozenset({"lm", "cmov", "cx8", "fpu", "fxsr", "mmx", "sse", "sse2"})),
    ("x86-64-v2", frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})),
    ("x86-64-v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})),
    ("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
)
_VECTOR = {
    "x86_64": (("sse", "ssse", "avx", "amx"), frozenset({"fma", "f16c"})),
    "aarch64": (("asimd", "sve", "sme"), frozenset({"fphp", "bf16", "i8mm"})),
}
"""Prefixes of the names of vector features, and the names that have none of these prefixes."""
_X86_64 = (
    *("mmx", "3dnow", "sse", "ssse", "pni", "avx", "amx", "apx", "fma", "f16c", "xop"),
    *("cmov", "cx8", "cx16", "lahf_lm", "abm", "bmi", "tbm", "popcnt", "movbe", "movdir", "adx", "raoint", "cmpccxadd"),
    *("aes", "vaes", "pclmul", "vpclmul", "gfni", "sha", "sm3", "sm4", "prefetch"),
)
_AARCH64 = (
    *("fp", "asimd", "sve", "sme", "i8mm", "bf16", "ebf16", "f8", "jscvt", "fcma", "frint", "flagm", "cssc", "mops"),
    *("atomics", "lse", "lrcpc", "ilrcpc", "uscat", "aes", "pmull", "sha", "sm3", "sm4", "crc32"),
)
_INSTRUCTIONS = {"x86_64": _X86_64, "aarch64": _AARCH64}
"""Prefixes of the names of instructions that compilers make use of.

What a kernel lists besides differs with its version, a virtual machine and mitigations: hypervisor, md_clear.
"""
_MAX_BLOCK_BYTES = 1 << 16


class CPUInfo:
    """One processor's model and feature flags."""

    __slots__ = ("flags", "machine", "model")

    def __init__(self, model: str, flags: frozenset[str], machine: str) -> None:
        self.model, self.flags, self.machine = model, flags, machine

    @property
    def level(self) -> str:
        """The highest level of which all features are present, such as `x86-64-v3` or `aarch64`; empty if unknown."""
        if self.machine == "aarch64":
            return "aarch64"
        reached = ""
        if self.machine == "x86_64":
            for level, flags in _LEVELS:
                if not flags <= self.flags:
                    break
                reached = level
        return reached

    @property
    def simd(self) -> tuple[str, ...]:
        """Vector features by the kernel's names, sorted; except that its `pni` is listed as sse3."""
        prefixes, others = _VECTOR.get(self.machine, ((), frozenset()))
        features = {flag for flag in self.flags if flag.startswith(prefixes) or flag in others}
        return tuple(sorted(features | {"sse3"} if "pni" in self.flags else features))

    @property
    def instructions(self) -> tuple[str, ...]:
        """The instruction sets that -march=native makes a compiler use here, by the kernel's names, sorted."""
        return tuple(sorted(flag for flag in self.flags if flag.startswith(_INSTRUCTIONS.get(self.machine, ()))))


@cache
def read_cpuinfo(root: str = "/") -> CPUInfo:
    """Reads the first processor's block only, because reading the whole file is slow on machines with many cores.

    Without such a file only the machine's name is known, and its baseline is assumed.
    """
    block = _first_block(os.path.join(root, "proc/cpuinfo"))
    if flags := _field(block, "flags"):
        return CPUInfo(_field(block, "model name"), frozenset(flags.split()), "x86_64")
    if features := _field(block, "Features"):
        part = f"implementer {_field(block, 'CPU implementer') or '?'} part {_field(block, 'CPU part') or '?'}"
        # 32-bit Arm has the same field, but calls its vector unit neon.
        machine = "aarch64" if "asimd" in features else "arm"
        return CPUInfo(_field(block, "model name") or part, frozenset(features.split()), machine)
    machine = {"arm64": "aarch64", "AMD64": "x86_64"}.get(os.uname().machine, os.uname().machine)
    return CPUInfo("", _LEVELS[0][1] if machine == "x86_64" else frozenset(), machine)


def _field(block: str, name: str) -> str:
    """Returns the value of a `name : value` line, empty if there is none. Splitting all lines would take longer."""
    start = block.find("\n" + name)
    while start >= 0:
        key, colon, value = block[start + 1 :].partition("\n")[0].partition(":")
        if colon and key.strip() == name:
            return value.strip()
        start = block.find("\n" + name, start + 1)
    return ""


def _first_block(path: str) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    text = b""
    try:
        while b"\n\n" not in text and len(text) < _MAX_BLOCK_BYTES and (part := os.read(handle, 4096)):
            text += part
    finally:
        os.close(handle)
    return "\n" + text.partition(b"\n\n")[0].decode("utf-8", "replace")
