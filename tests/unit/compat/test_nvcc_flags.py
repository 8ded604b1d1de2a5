"""Architectures among an extension's nvcc flags."""

from __future__ import annotations

import pytest

from opforge.compat.cpp_extension import nvcc_flags
from opforge.errors import BuilderError


@pytest.mark.parametrize(
    ("flags", "others", "codes"),
    [
        (["-O3", "-Xcompiler", "-Wall"], ("-O3", "-Xcompiler", "-Wall"), ()),
        (["-gencode", "arch=compute_80,code=sm_80", "-O3"], ("-O3",), ("sm_80",)),
        (["-gencode=arch=compute_90,code=[sm_90,compute_90]"], (), ("sm_90", "ptx")),
        (["--generate-code=arch=compute_90a,code=sm_90a", "--generate-code", "arch=compute_80,code=compute_80"], (),
         ("sm_90a", "compute_80")),
    ],
)  # fmt: skip
def test_architectures_among_the_flags_become_the_target(flags, others, codes):
    assert nvcc_flags.without_architectures("a", flags) == (others, codes)


@pytest.mark.parametrize(
    ("flags", "rejected"),
    [
        (["-arch=native"], "-arch=native"),
        (["-gencode", "arch=compute_80,code=sm_86"], "-gencode arch=compute_80,code=sm_86"),
        (["-gencode"], "-gencode"),
    ],
)
def test_architectures_that_no_target_can_express_are_an_error(flags, rejected):
    with pytest.raises(BuilderError) as caught:
        nvcc_flags.without_architectures("a._C", flags)
    assert str(caught.value) == (
        f"a._C: the nvcc flag {rejected!r} is not supported. Write -gencode=arch=compute_90,code=sm_90, or set"
        " TORCH_CUDA_ARCH_LIST"
    )
