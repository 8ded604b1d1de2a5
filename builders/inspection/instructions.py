"""The level of x86-64 that a library's machine code needs, read from its disassembly (binutils' objdump)."""

from __future__ import annotations

import re
import subprocess
import tempfile
from typing import NamedTuple

from opforge.foundation import exit_status

from .reader import FileFormatError

LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
"""The levels of the psABI (x86-64 psABI, section 3.1.1), lowest first."""
ABOVE = "an instruction of no level"
FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>.*)>:$")
INSTRUCTION = re.compile(
    r"^ +[0-9a-f]+:\t(?:(?:lock|rep|repz|repnz|notrack|bnd|data16|cs|ds|es|ss|\{\w+\}) )*(?P<text>(?P<name>[a-z]\w*).*)"
)
ASKS = re.compile(r"cpuid")
NO_LEVEL = re.compile(
    r"aes\w+|v?pclmul\w+|vaes\w+|sha(?:1|256)\w+|v?gf2p8\w+|ad[co]x[lq]?|rdrand\w?|rdseed\w?"
    r"|tdp\w+|tile\w+|ldtilecfg|sttilecfg|vpdp\w+|vdpbf16ps|vcvtne\w+bf16|vpopcnt[bwdq]|vpshufbitqmb"
    r"|vp(?:compress|expand)[bw]|vpsh[lr]d\w+|vperm[it]?2?b|vpmultishiftqb|vpmadd52\w+|vp2intersect\w|v(?!cvtps2ph)\w+(?:ph|sh)"
)
"""Extensions that no level has: AES, SHA, AMX, VNNI, BF16, FP16 and others."""
V4 = re.compile(r"%zmm|%k[0-7]|%[xy]mm(?:1[6-9]|2\d|3[01])")
V3 = re.compile(
    r"v(?!err|erw|m(?:call|clear|func|launch|ptrld|ptrst|read|resume|write|xoff|xon|load|run|save|mcall))[a-z]\w*"
    r"|andn[lq]?|bextr[lq]?|bls(?:i|r|msk)[lq]?|bzhi[lq]?|pdep[lq]?|pext[lq]?|rorx[lq]?|s[ah][rl]x[lq]?|mulx[lq]?"
    r"|lzcnt[wlq]?|movbe[wlq]?"
)
"""AVX, AVX2, FMA, F16C, BMI, LZCNT, MOVBE. TZCNT is left out: compilers write it where BSF does the same."""
V2 = re.compile(
    r"popcnt[wlq]?|crc32[bwlq]?|cmpxchg16b|[ls]ahf|(?:addsub|hadd|hsub)p[sd]|lddqu|movddup|movs[hl]dup|fisttp\w*"
    r"|pshufb|palignr|pabs[bwd]|psign[bwd]|ph(?:add|sub)\w+|pmaddubsw|pmulhrsw|blendv?p[sd]|pblend\w+|dpp[sd]"
    r"|extractps|insertps|pinsr[bdq]|pextr[bdq]|p(?:min|max)(?:sb|sd|ud|uw)|pmulld|pmuldq|pcmpeqq|ptest|round[sp][sd]"
    r"|pmov[sz]x\w+|mpsadbw|phminposuw|packusdw|movntdqa|pcmpgtq|pcmp[ei]str[im]"
)
"""SSE3, SSSE3, SSE4.1, SSE4.2, POPCNT, CMPXCHG16B, LAHF."""
SECONDS = 600.0


class Need(NamedTuple):
    """The highest level that an instruction of a library needs."""

    level: str
    """One of `LEVELS`, or `ABOVE`."""
    function: str = ""
    instruction: str = ""
    """An instruction of this level, and the function that it is in."""
    asks: bool = False
    """Whether the library asks the processor what it can do, and so may have code for several levels."""


def needed_level(path: str, objdump: str) -> Need:
    """Returns the needs of a library's machine code. Raises FileFormatError if objdump cannot read it, OSError."""
    command = [objdump, "--disassemble", "--no-show-raw-insn", "--wide", path]
    with tempfile.TemporaryFile() as printed:
        try:
            done = exit_status.run(command, SECONDS, stdout=printed, stderr=subprocess.PIPE)
        except subprocess.TimeoutExpired as error:
            raise FileFormatError(f"{path}: objdump did not end within {SECONDS:.0f} s") from error
        if done.returncode:
            raise FileFormatError(
                f"{path}: objdump cannot read it: {done.stderr.decode(errors='replace').strip()[:500]}"
            )
        printed.seek(0)
        need, function, asks = Need(LEVELS[0]), "", False
        for raw in printed:
            line = raw.decode(errors="replace").rstrip("\n")
            if match := INSTRUCTION.match(line):
                asks = asks or bool(ASKS.fullmatch(match["name"]))
                level = level_of(match["name"], match["text"])
                if _rank(level) > _rank(need.level):
                    need = Need(level, function, " ".join(match["text"].split()))
            elif match := FUNCTION.match(line):
                function = match["name"]
    return need._replace(asks=asks)


def level_of(name: str, text: str) -> str:
    """Returns the lowest level that has an instruction, by its name and its whole text in AT&T's syntax."""
    if NO_LEVEL.fullmatch(name):
        return ABOVE
    if V4.search(text):
        return LEVELS[3]
    if V3.fullmatch(name):
        return LEVELS[2]
    return LEVELS[1] if V2.fullmatch(name) else LEVELS[0]


def exceeds(need: Need, level: str) -> bool:
    """Returns whether code needs more than a level has."""
    return _rank(need.level) > _rank(level)


def _rank(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)
