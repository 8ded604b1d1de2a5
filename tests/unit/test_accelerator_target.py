"""What a target string may say, and what is said about one that is wrong."""

from __future__ import annotations

import copy
import pickle

import pytest

from opforge.accelerator.target import Target
from opforge.errors import SettingError


@pytest.mark.parametrize(
    ("text", "device", "arch"),
    [
        ("cpu", "cpu", ()),
        ("cpu:native", "cpu", ("native",)),
        ("cpu:x86-64-v3", "cpu", ("x86-64-v3",)),
        ("cpu:x86-64-v2+x86-64-v4", "cpu", ("x86-64-v2", "x86-64-v4")),
        ("cuda:sm_80+sm_90a", "cuda", ("sm_80", "sm_90a")),
        ("hip:gfx90a", "hip", ("gfx90a",)),
        ("xpu:pvc-1.2", "xpu", ("pvc-1.2",)),
    ],
)
def test_a_target_is_read_and_written_back_the_same(text, device, arch):
    target = Target.parse(text)
    assert (target.device, target.arch, str(target)) == (device, arch, text)


@pytest.mark.parametrize(
    ("text", "says"),
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
        ("cuda:sm_80+sm 90", "letters, digits, '_', '.' and '-' joined by '+' at column 14."),
        ("cuda:sm_80+", "joined by '+' at column 12."),
        ("cuda:sm_80+sm_80", "each architecture once, but 'sm_80' is repeated at column 12."),
        ("cuda:sm_é", "joined by '+' at column 9."),
    ],
)
def test_a_wrong_target_is_refused_with_its_column(text, says):
    with pytest.raises(SettingError) as refused:
        Target.parse(text)
    assert says in str(refused.value)


def test_a_target_is_a_value():
    one, same = Target.parse("cuda:sm_90"), Target("cuda", ("sm_90",))
    assert one == same and hash(one) == hash(same)
    assert one != Target("cuda") and one != "cuda:sm_90"
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
    assert repr(one) == "Target('cuda:sm_90')"


def test_a_target_cannot_be_changed():
    target = Target("cpu")
    with pytest.raises(AttributeError, match="a Target cannot be changed: build a new one instead of setting 'device'"):
        target.device = "cuda"
    with pytest.raises(AttributeError, match="'arch' stays"):
        del target.arch
