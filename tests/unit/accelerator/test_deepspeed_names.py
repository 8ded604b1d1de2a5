"""DeepSpeed's names for accelerators and for the modules that have them."""

from __future__ import annotations

import importlib

import pytest
from support.devices import every_accelerator

import opforge.accelerator
from opforge.accelerator import registry
from opforge.accelerator.devices.cpu import CPUAccelerator


@pytest.mark.parametrize("device", [name for name in registry.BUILT_IN if name != "null"])
def test_an_accelerator_has_deepspeeds_name_in_a_module_of_deepspeeds_name(device):
    module, _, attribute = registry.BUILT_IN[device].partition(":")
    name = f"{device.upper()}_Accelerator"
    ours = getattr(importlib.import_module(module), attribute)
    assert getattr(importlib.import_module(f"opforge.accelerator.{device}_accelerator"), name) is ours
    assert getattr(opforge.accelerator, name) is ours


def test_the_interface_and_the_choice_have_deepspeeds_names():
    from opforge.accelerator import Accelerator, DeepSpeedAccelerator, abstract_accelerator, real_accelerator

    assert DeepSpeedAccelerator is abstract_accelerator.DeepSpeedAccelerator is Accelerator
    assert real_accelerator.get_accelerator is opforge.accelerator.get_accelerator
    assert real_accelerator.set_accelerator is opforge.accelerator.set_accelerator


@pytest.mark.parametrize("name", every_accelerator.ALL)
def test_synchronize_takes_torchs_word_for_the_device(name, monkeypatch, tmp_path):
    accelerator = every_accelerator.make(name, monkeypatch, tmp_path)
    accelerator.synchronize(device=0)
    accelerator.synchronize(device=accelerator.device_name(0))
    if not accelerator.index_is_rank:
        with pytest.raises(ValueError, match="expected a number below"):
            accelerator.synchronize(device=99)


def test_the_cpu_has_nothing_to_wait_for():
    assert CPUAccelerator().synchronize(device="cpu") is None
