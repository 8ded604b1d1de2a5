"""torch's variables for architectures: parsed by opforge as torch itself parses them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opforge.accelerator import archs
from opforge.accelerator.target import Target
from opforge.errors import SettingError

NUMBERS = ["7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "9.0a", "10.0", "10.0a", "10.3", "12.0", "12.1a"]
NAMES = [
    *("Kepler", "Kepler+Tesla", "Maxwell", "Maxwell+Tegra", "Pascal", "Volta", "Volta+Tegra", "Turing"),
    *("Ampere", "Ampere+Tegra", "Ada", "Hopper", "Blackwell", "Blackwell+Tegra"),
]
WORDS = [*NUMBERS, *(f"{number}+PTX" for number in NUMBERS), *NAMES]


@settings(max_examples=300, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=5), separator=st.sampled_from([";", " "]))
def test_a_list_for_cuda_means_the_same_as_in_torch(words, separator):
    from torch.utils import cpp_extension

    text = separator.join(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_CUDA_ARCH_LIST", text)
        torch_codes = {flag.rpartition("code=")[2] for flag in cpp_extension._get_cuda_arch_flags()}
        assert set(archs.resolve_ptx(archs.from_environment("cuda"))) == torch_codes


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["gfx90a", "gfx942", "gfx90a:xnack+", "gfx1100", "gfx9-4-generic"]), min_size=1))
def test_a_list_for_hip_means_the_same_as_in_torch(words):
    from torch.utils import cpp_extension

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTORCH_ROCM_ARCH", ";".join(words))
        torch_codes = {flag.partition("arch=")[2] for flag in cpp_extension._get_rocm_arch_flags() if "arch=" in flag}
        assert set(archs.from_environment("hip")) == torch_codes


PIECES = ["cuda", "hip", "xpu", "cpu", "npu", ":", "+", "sm_", "compute_", "9", "0", "a", "ptx", "native", "Hopper"]
PIECES += ["gfx", "xnack-", "x86-64", "-v3", "pvc", ".", " ", "é", "\n", "Ampere+Tegra"]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join) | st.text(max_size=12))
def test_every_text_is_a_target_that_can_be_parsed_again_or_an_error_with_the_column(text):
    try:
        target = Target.parse(text)
    except SettingError as error:
        assert " at column " in str(error)
    else:
        assert Target.parse(str(target)) == target
        if target.device in ("cuda", "hip"):
            arch = archs.canonical(target.device, target.arch)
            assert archs.canonical(target.device, arch) == arch
