"""The tables of `opforge port` against torch's own modules and the accelerator interface."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
import torch.cuda.amp

from opforge.accelerator.interface.accelerator import Accelerator
from opforge.accelerator.registry import BUILT_IN
from opforge.port import names, vendors


def attribute(root, path):
    for part in path.split("."):
        root = getattr(root, part)
    return root


@pytest.mark.parametrize("name", names.RULES)
def test_every_rule_names_what_torch_and_the_interface_have(name):
    rule = names.RULES[name]
    theirs = attribute(torch.cuda, name)
    assert hasattr(Accelerator, rule.method)
    if rule.takes is None:
        assert inspect.isclass(theirs) and isinstance(inspect.getattr_static(Accelerator, rule.method), property)
        return
    ours = list(inspect.signature(getattr(Accelerator, rule.method)).parameters)[1:]
    assert [our for _their, our in rule.takes] == ours[: len(rule.takes)]
    torchs = list(inspect.signature(theirs).parameters)
    torchs = ["msg"] if name == "nvtx.range_push" else torchs
    assert [their for their, _our in rule.takes] == torchs[: len(rule.takes)]


@pytest.mark.parametrize("name", [name for name, rule in names.RULES.items() if rule.numbers])
def test_a_device_is_the_last_argument_that_a_rule_takes(name):
    assert names.RULES[name].takes[-1] == ("device", "device_index")


def test_advice_is_given_for_names_that_torch_has_and_no_rule_covers():
    for name in names.ADVICE:
        assert attribute(torch.cuda, name) is not None and name not in names.RULES


@pytest.mark.parametrize("name", names.AMP)
def test_mixed_precision_has_a_general_form_with_the_same_arguments(name):
    general, device, order = names.AMP[name]
    theirs, ours = attribute(torch.cuda, name), attribute(torch, general)
    new = list(inspect.signature(ours).parameters)
    assert device in new
    old = list(inspect.signature(theirs).parameters)
    if name == "amp.GradScaler":
        assert new[0] == device and new[1:] == old  # so that those given by position only move by one
    elif name == "amp.autocast":
        assert list(order) == old and set(order) <= set(new)


def test_what_is_said_to_be_torchs_own_is():
    assert torch.cuda.OutOfMemoryError is torch.OutOfMemoryError
    for name in names.TENSOR_TYPES:
        assert hasattr(torch.cuda, name) and hasattr(Accelerator, name)
    assert torch.cuda.CUDAGraph.__name__ in names.GRAPH_CLASSES and torch.xpu.XPUGraph.__name__ in names.GRAPH_CLASSES
    assert all(callable(attribute(torch.mps, name)) for name in names.MPS)
    assert all(callable(attribute(torch, name.removeprefix("torch."))) for name in names.CHECKS)
    assert all(attribute(torch, name.removeprefix("torch.").rpartition(".")[0]) for name in names.OTHERS)


def test_every_vendor_that_opforge_has_is_known():
    assert set(BUILT_IN) - {"cpu", "null"} <= set(vendors.VENDORS)


@pytest.mark.parametrize(
    ("qualified", "short"),
    [
        ("torch.cuda.synchronize", ("cuda", "synchronize")),
        ("torch.xpu.memory.empty_cache", ("xpu", "empty_cache")),
        ("torch.cuda.amp.autocast_mode.autocast", ("cuda", "amp.autocast")),
        ("torch.cuda", ("cuda", "")),
        ("torch.accelerator.synchronize", None),
        ("numba.cuda.synchronize", None),
    ],
)
def test_a_name_has_one_short_form(qualified, short):
    assert names.short_name(qualified) == short


def test_a_text_without_a_hint_has_no_tie():
    strings = [*vendors.VENDORS, *vendors.BACKENDS, *vendors.PACKAGES, *vendors.VARIABLES]
    for text in [*strings, *(name.rpartition(".")[2] for name in names.OTHERS), "pin_memory", "deepspeed"]:
        assert re.search(vendors.HINT, f"x = '{text}'"), text
    for text in ("cuda:1", "x.is_npu", "import torch_npu.optim", "f'xpu:{x}'", "torch.mps", "torch.cuda.CUDAGraph"):
        assert re.search(vendors.HINT, text), text
    assert not re.search(vendors.HINT, "input, ships, timestamps")


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        ("cuda", ("cuda",)),
        ("npu:3", ("npu",)),
        ("cuda:", ()),
        ("cuda is fast", ()),
        ("hccl", ("npu", "hpu")),
        ("torch.cuda.FloatTensor", ("cuda",)),
        ("CUDA_VISIBLE_DEVICES", ("cuda",)),
        ("cpu", ()),
        ("gloo", ()),
    ],
)
def test_whose_a_string_is(text, whose):
    assert vendors.vendors_of_string(text) == whose
