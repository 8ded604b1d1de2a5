"""The level of x86-64 that machine code needs: of single instructions, and of libraries."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from opforge.builders.inspection import instructions
from opforge.builders.inspection.reader import FileFormatError

BASE, V2, V3, V4 = instructions.LEVELS
LINES = {
    "mov    %rax,%rbx": BASE,
    "push   0x2fca(%rip)        # 3ff0 <_GLOBAL_OFFSET_TABLE_+0x8>": BASE,
    "tzcnt  %rax,%rdx": BASE,
    "verr   %ax": BASE,
    "mulsd  %xmm1,%xmm0": BASE,
    "pextrw $0x1,%xmm0,%eax": BASE,
    "pmaxsw %xmm1,%xmm0": BASE,
    "popcnt %rdi,%rax": V2,
    "pshufb %xmm1,%xmm0": V2,
    "roundps $0x1,%xmm0,%xmm1": V2,
    "pextrd $0x1,%xmm0,%eax": V2,
    "vxorpd %xmm1,%xmm1,%xmm1": V3,
    "vfmadd231pd %ymm1,%ymm2,%ymm0": V3,
    "vcvtps2ph $0x4,%ymm0,%xmm0": V3,
    "shlx   %rcx,%rax,%rax": V3,
    "vaddps (%rax),%zmm1,%zmm1": V4,
    "vaddps %ymm17,%ymm1,%ymm1": V4,
    "vmovdqu8 (%rsi),%ymm1{%k1}{z}": V4,
    "vpdpbusd %zmm1,%zmm2,%zmm3": instructions.ABOVE,
    "vaddph %zmm1,%zmm2,%zmm3": instructions.ABOVE,
    "vdpbf16ps %zmm1,%zmm2,%zmm3": instructions.ABOVE,
    "tdpbf16ps %tmm1,%tmm2,%tmm3": instructions.ABOVE,
    "aesenc %xmm1,%xmm0": instructions.ABOVE,
}
CODE = """\
extern "C" float total(const float* x, long n) { float s = 0; for (long i = 0; i < n; i++) s += x[i] * x[i]; return s; }
"""
CHOOSES = '__attribute__((target_clones("avx512f", "default"))) ' + CODE.partition(" ")[2].partition(" ")[2]
needs_compiler = pytest.mark.skipif(
    os.uname().machine != "x86_64" or not shutil.which("g++") or not shutil.which("objdump"),
    reason="needs g++ and objdump for x86-64",
)


@pytest.mark.parametrize("line", LINES)
def test_each_instruction_has_the_lowest_level_that_offers_it(line):
    assert instructions.level_of(line.split()[0], line) == LINES[line]


def library(folder, code, *flags):
    """Returns the path of a library that g++ makes of some code."""
    source, path = folder / "code.cpp", folder / "code.so"
    source.write_text(code)
    subprocess.run(["g++", "-O3", "-ffast-math", "-shared", "-fPIC", *flags, str(source), "-o", str(path)], check=True)
    return str(path)


@needs_compiler
@pytest.mark.parametrize("level", instructions.LEVELS)
def test_a_library_needs_no_more_than_the_level_that_it_was_compiled_for(tmp_path, level):
    need = instructions.needed_level(library(tmp_path, CODE, f"-march={level}"), "objdump")
    assert not instructions.exceeds(need, level) and not need.asks
    if level in (V3, V4):
        assert need.level == level and need.function == "total"


@needs_compiler
def test_a_library_that_chooses_by_itself_says_that_it_asks_the_processor(tmp_path):
    need = instructions.needed_level(library(tmp_path, CHOOSES), "objdump")
    assert need.level == V4 and need.asks


@needs_compiler
def test_what_objdump_cannot_read_is_an_error(tmp_path):
    (tmp_path / "code.so").write_text("text")
    with pytest.raises(FileFormatError, match=r"code\.so: objdump cannot read it"):
        instructions.needed_level(str(tmp_path / "code.so"), "objdump")
