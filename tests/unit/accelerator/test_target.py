"""Target strings: what is valid, and the error for an invalid one."""

from __future__ import annotations

import copy
import pickle

import pytest

from opforge.accelerator import archs
from opforge.accelerator.target import Target
from opforge.errors import SettingError


@pytest.mark.parametrize(
    ("text", "device", "arch"),
    [
        ("cpu", "cpu", ()),
        ("cpu:native", "cpu", ("native",)),
        ("cpu:x86-64-v3", "cpu", ("x86-64-v3",)),
        ("cuda:sm_80+sm_90a", "cuda", ("sm_80", "sm_90a")),
        ("cuda:sm_90a+sm_100f+ptx", "cuda", ("sm_90a", "sm_100f", "ptx")),
        ("cuda:sm_320z+compute_210", "cuda", ("sm_320z", "compute_210")),
        ("cuda:native+ptx", "cuda", ("native", "ptx")),
        ("hip:gfx90a", "hip", ("gfx90a",)),
        ("hip:gfx942:sramecc+:xnack-", "hip", ("gfx942:sramecc+:xnack-",)),
        ("hip:gfx90a:xnack++gfx942:xnack-+gfx1201", "hip", ("gfx90a:xnack+", "gfx942:xnack-", "gfx1201")),
        ("hip:gfx9-4-generic", "hip", ("gfx9-4-generic",)),
        ("npu:910b", "npu", ("910b",)),
        ("xpu:pvc-1.2", "xpu", ("pvc-1.2",)),
    ],
)
def test_a_target_is_parsed_and_printed_unchanged(text, device, arch):
    target = Target.parse(text)
    assert (target.device, target.arch, str(target)) == (device, arch, text)


@pytest.mark.parametrize(
    ("text", "arch"),
    [
        ("cuda:Hopper", ("sm_90", "ptx")),
        ("cuda:hopper+sm_90", ("sm_90", "ptx")),
        ("cuda:Volta+sm_80", ("sm_70", "sm_80", "compute_70")),
        ("cuda:Ampere+Hopper", ("sm_80", "sm_86", "sm_90", "compute_86", "ptx")),
    ],
)
def test_a_name_means_the_same_architectures_as_in_torch(text, arch):
    assert Target.parse(text).arch == arch


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "target='' cannot be used: expected a device name such as cpu or cuda at column 1, not ''."),
        ("9cpu", "expected a device name such as cpu or cuda at column 1, not '9cpu'."),
        ("c pu:native", "at column 1, not 'c pu'."),
        (
            "cpu:x86-64-v9",
            "target='cpu:x86-64-v9' cannot be used: expected one of x86-64, x86-64-v2, x86-64-v3, x86-64-v4, aarch64,"
            " native at column 5, not 'x86-64-v9'.",
        ),
        ("cpu:", "at column 5, not ''."),
        ("cpu:x86-64+nonsense", "at column 12, not 'nonsense'."),
        ("cpu:x86-64-v2+x86-64-v3", "one level, because a library has one, but there is another at column 15."),
        ("npu:910b+910 c", "letters, digits, '_', '.' and '-' joined by '+' at column 13."),
        ("npu:910b+", "joined by '+' at column 10."),
        ("npu:910é", "joined by '+' at column 8."),
        (
            "cuda:sm_80+sm 90",
            "an architecture such as sm_90, sm_100f, compute_90, ptx, Hopper or native at column 12, not 'sm 90'.",
        ),
        ("cuda:sm_80+", "at column 12, not ''."),
        ("cuda:", "at column 6, not ''."),
        ("cuda:sm_9", "at column 6, not 'sm_9'."),
        ("cuda:ptx", "an architecture beside ptx at column 6, such as sm_90+ptx."),
        ("hip:gfx90a:xnack-+gfx942:sramecc*", "or native at column 19, not 'gfx942:sramecc*'."),
        ("hip:sm_90", "an architecture such as gfx942, gfx90a:sramecc+:xnack- or native at column 5, not 'sm_90'."),
        ("cuda:sm_80+sm_80", "each architecture once, but 'sm_80' is repeated at column 12."),
    ],
)
def test_an_invalid_target_is_an_error_with_the_column(text, message):
    with pytest.raises(SettingError) as raised:
        Target.parse(text)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("cuda:Hopper", "cuda:sm_90+ptx"),
        ("cuda:ampere", "cuda:sm_80+sm_86+ptx"),
        ("cuda:Ampere+sm_80", "cuda:sm_80+sm_86+ptx"),
        ("cuda:9.0a+12.1", "cuda:sm_90a+sm_121"),
        ("hip:GFX942:XNACK+", "hip:gfx942:xnack+"),
    ],
)
def test_a_name_is_printed_as_its_architectures(text, printed):
    assert str(Target.parse(text)) == printed


def test_lists_of_the_same_architectures_have_one_form():
    assert archs.canonical("hip", ("gfx942", "gfx90a", "gfx942")) == ("gfx90a", "gfx942")


def test_a_target_is_a_value():
    target, equal = Target.parse("cuda:sm_90"), Target("cuda", ("sm_90",))
    assert target == equal and hash(target) == hash(equal)
    assert target != Target("cuda") and target != "cuda:sm_90"
    assert pickle.loads(pickle.dumps(target)) == copy.deepcopy(target) == target
    assert repr(target) == "Target('cuda:sm_90')"


def test_a_target_cannot_be_changed():
    target = Target("cpu")
    with pytest.raises(AttributeError, match="a Target cannot be changed: build a new one instead of setting 'device'"):
        target.device = "cuda"
    with pytest.raises(AttributeError, match="'arch' cannot be deleted"):
        del target.arch
