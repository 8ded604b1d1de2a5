"""What every accelerator guarantees of the devices that callers name: which are accepted, and which are refused."""

from __future__ import annotations

import inspect

import pytest
import torch
from support.devices.every_accelerator import EXTERNAL, is_fake

from opforge.accelerator import Accelerator
from opforge.errors import SettingError

STATE = torch.get_rng_state()
BY_INDEX = [
    name
    for name, member in inspect.getmembers(Accelerator, inspect.isfunction)
    if not name.startswith("_") and "device_index" in inspect.signature(member).parameters
]
"""The methods that take a device."""
RANKS = {"cpu", "null", "hpu"}
"""Accelerators on which a number stands for a process: any number is one."""


def call(accelerator, name, device):
    """Calls the method for the device."""
    arguments = {"new_state": accelerator.get_rng_state()} if name == "set_rng_state" else {}
    return getattr(accelerator, name)(**arguments, device_index=device)


def forms(accelerator, index):
    """Returns the ways to name a device, except its number: torch.device only if this torch knows the type."""
    names: list[object] = [str(index), f"{accelerator.torch_device}:{index}"]
    try:
        names.append(torch.device(accelerator.torch_device, index))
    except RuntimeError:
        assert is_fake(accelerator), "the vendor's package registers the type"
    return names


def test_over_twenty_methods_take_a_device():
    assert len(BY_INDEX) > 20 and {"device", "set_device", "synchronize", "available_memory"} <= set(BY_INDEX)


@pytest.mark.parametrize("wrong", [-1, "-1", "nonsense:0", 1.5, [0]])
def test_what_is_no_device_cannot_be_the_current_one(accelerator, wrong):
    before = accelerator.current_device()
    for name in ("set_device", "device"):
        with pytest.raises(SettingError) as raised:
            call(accelerator, name, wrong)
        assert str(raised.value) == (
            f"device_index={wrong!r} cannot be used: expected a number from 0 on, or a torch.device of type"
            f" {accelerator.torch_device!r}."
        )
    assert accelerator.current_device() == before


def test_another_kind_of_device_cannot_be_the_current_one(accelerator):
    other = torch.device("mtia", 0)
    with pytest.raises(SettingError, match=r"device_index=device\(type='mtia', index=0\) cannot be used"):
        accelerator.set_device(other)


def test_a_device_that_does_not_exist_is_refused_by_every_method_unless_numbers_stand_for_processes(accelerator):
    count = accelerator.device_count()
    assert accelerator.name in EXTERNAL or accelerator.index_is_rank == (accelerator.name in RANKS)
    # Another package's accelerator may keep the host's methods, which ignore the device.
    names = ("set_device", "device") if accelerator.name in EXTERNAL else BY_INDEX
    for device in (count, count + 7, *forms(accelerator, count)):
        for name in names:
            if accelerator.index_is_rank or name == "device_name":
                call(accelerator, name, device)
            else:
                with pytest.raises(SettingError, match=f"expected a number below {count}, the number of"):
                    call(accelerator, name, device)


def test_every_method_accepts_every_form_of_a_device(accelerator):
    for name in BY_INDEX:
        expected = call(accelerator, name, 0)
        for device in forms(accelerator, 0):
            assert type(call(accelerator, name, device)) is type(expected), (name, device)


def test_a_torch_device_selects_the_device_of_its_number(accelerator):
    last = accelerator.device_count() - 1
    for device in forms(accelerator, last):
        accelerator.set_device(0)
        accelerator.set_device(device)
        assert accelerator.current_device() == last
        accelerator.set_device(0)
        with accelerator.device(device):
            assert accelerator.current_device() == last
        assert accelerator.current_device() == 0
        assert accelerator.device_name(device) == accelerator.device_name(last)


def test_a_device_without_a_number_is_the_current_one(accelerator):
    for name in BY_INDEX:
        if name != "set_device":
            call(accelerator, name, accelerator.torch_device)
    assert accelerator.device_name(accelerator.torch_device) == accelerator.device_name()


def test_the_architecture_of_a_device_is_one_of_the_targets(accelerator):
    for index in (None, *range(accelerator.device_count())):
        assert accelerator.device_arch(index) in ("", *accelerator.target().arch)
