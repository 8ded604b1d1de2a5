"""The tables of `opforge port`, compared with torch's modules and the accelerator interface."""

from __future__ import annotations

import importlib
import inspect
import re
from functools import cached_property  # noqa: TID251

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
def test_every_rule_matches_torchs_function_and_the_interfaces_method(name):
    rule = names.RULES[name]
    theirs = attribute(torch.cuda, name)
    assert hasattr(Accelerator, rule.method)
    if rule.parameters is None:
        assert inspect.isclass(theirs) and isinstance(inspect.getattr_static(Accelerator, rule.method), cached_property)
        return
    ours = list(inspect.signature(getattr(Accelerator, rule.method)).parameters)[1:]
    assert [our for _their, our in rule.parameters] == ours[: len(rule.parameters)]
    torch_parameters = ["msg"] if name == "nvtx.range_push" else list(inspect.signature(theirs).parameters)
    assert [their for their, _our in rule.parameters] == torch_parameters[: len(rule.parameters)]


@pytest.mark.parametrize("name", [name for name, rule in names.RULES.items() if rule.takes_device])
def test_the_device_is_the_last_parameter_of_a_rule(name):
    assert names.RULES[name].parameters[-1] == ("device", "device_index")


def test_advice_is_about_names_that_torch_has_and_no_rule_covers():
    for name in names.ADVICE:
        assert attribute(torch.cuda, name) is not None and name not in names.RULES


@pytest.mark.parametrize("name", names.AMP)
def test_mixed_precision_has_a_general_form_with_the_same_parameters(name):
    general, device, order = names.AMP[name]
    theirs, ours = attribute(torch.cuda, name), attribute(torch, general)
    new = list(inspect.signature(ours).parameters)
    assert device in new
    old = list(inspect.signature(theirs.__init__).parameters)[1:]  # of the class, Python 3.13 takes a wrapper's
    if name == "amp.GradScaler":
        assert new[0] == device and new[1:] == old  # so positional arguments only move by one place
    elif name == "amp.autocast":
        assert list(order) == old and set(order) <= set(new)


def test_the_further_names_of_the_tables_exist_in_torch():
    assert torch.cuda.OutOfMemoryError is torch.OutOfMemoryError
    for name in names.TENSOR_TYPES:
        assert hasattr(torch.cuda, name) and hasattr(Accelerator, name)
    assert torch.cuda.CUDAGraph.__name__ in names.GRAPH_CLASSES
    # torch 2.10 has no graphs of XPUs.
    assert not hasattr(torch.xpu, "XPUGraph") or torch.xpu.XPUGraph.__name__ in names.GRAPH_CLASSES
    assert all(callable(attribute(torch.mps, name)) for name in names.MPS_NAMES)
    assert all(callable(attribute(torch, name.removeprefix("torch."))) for name in names.OUTSIDE_FUNCTIONS)
    assert all(attribute(torch, name.removeprefix("torch.").rpartition(".")[0]) for name in names.VENDOR_PREFIXES)


def test_every_built_in_accelerator_for_a_device_is_a_vendor():
    classes = [BUILT_IN[name].partition(":") for name in set(BUILT_IN) - {"cpu", "null"}]
    devices = {getattr(importlib.import_module(module), name).torch_device for module, _, name in classes}
    assert len(devices) > 5 and devices <= set(vendors.VENDORS)


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
def test_a_name_below_a_vendors_module_has_one_short_form(qualified, short):
    assert names.short_name(qualified) == short


def test_every_vendor_word_matches_the_hint():
    strings = [*vendors.VENDORS, *vendors.BACKENDS, *vendors.PACKAGES, *vendors.VARIABLES]
    for text in [*strings, *(name.rpartition(".")[2] for name in names.VENDOR_PREFIXES), "pin_memory", "deepspeed"]:
        assert re.search(vendors.HINT, f"x = '{text}'"), text
    for text in ("cuda:1", "x.is_npu", "import torch_npu.optim", "f'xpu:{x}'", "torch.mps", "torch.cuda.CUDAGraph"):
        assert re.search(vendors.HINT, text), text
    assert not re.search(vendors.HINT, "input, ships, timestamps")


@pytest.mark.parametrize(
    ("text", "owners"),
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
def test_the_vendors_of_a_string(text, owners):
    assert vendors.vendors_of_string(text) == owners
