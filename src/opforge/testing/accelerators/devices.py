"""Tests of every accelerator: which device arguments it accepts, and which it refuses."""

from __future__ import annotations

import inspect
from functools import partial

import torch

from opforge.accelerator import Accelerator
from opforge.errors import SettingError
from opforge.testing.contract import error_of

from .tested import AcceleratorTests

BY_INDEX = tuple(
    name
    for name, member in inspect.getmembers(Accelerator, inspect.isfunction)
    if not name.startswith("_") and "device_index" in inspect.signature(member).parameters
)
"""The methods that take a device."""
WRONG: tuple[object, ...] = (-1, "-1", "nonsense:0", 1.5, [0])


class DeviceTests(AcceleratorTests):
    """The tests of devices."""

    def call(self, name: str, device: object) -> object:
        """Calls the method for the device."""
        arguments = {"new_state": self.accelerator.get_rng_state()} if name == "set_rng_state" else {}
        return getattr(self.accelerator, name)(**arguments, device_index=device)

    def test_device_numbers_are_ints_and_names_make_devices(self) -> None:
        accelerator = self.accelerator
        current, count = accelerator.current_device(), accelerator.device_count()
        assert type(current) is int, f"current_device() is {current!r}, expected an int: it is used as an index"
        assert type(count) is int and count >= 1, (
            f"device_count() is {count!r}, expected an int of at least 1, because is_available() returned True"
        )
        for name in (accelerator.device_name(), accelerator.device_name(0), accelerator.current_device_name()):
            assert name.partition(":")[0] == accelerator.torch_device, (
                f"the name of a device is {name!r}, expected {accelerator.torch_device!r} or with a number: tensors are"
                " made on it"
            )
            if self.torch_has_device:
                kind = torch.device(name).type
                assert kind == accelerator.torch_device, f"torch.device({name!r}) is of type {kind!r}"
        with accelerator.device(0):
            inside = accelerator.current_device()
            assert inside == 0, f"in `with device(0)` the current device is {inside}"
        accelerator.set_device(0)
        accelerator.synchronize()
        accelerator.synchronize(0)

    def test_what_is_no_device_cannot_be_the_current_one(self) -> None:
        before = self.accelerator.current_device()
        for wrong in WRONG:
            for name in ("set_device", "device"):
                error = error_of(SettingError, partial(self.call, name, wrong), f"{name}({wrong!r})")
                expected = (
                    f"device_index={wrong!r} cannot be used: expected a number from 0 on, or a torch.device of type"
                    f" {self.accelerator.torch_device!r}."
                )
                assert str(error) == expected, (
                    f"{name}({wrong!r}) says {str(error)!r}, expected index_of()'s: {expected!r}"
                )
        after = self.accelerator.current_device()
        assert after == before, f"a refused device changed the current one from {before} to {after}"

    def test_another_kind_of_device_cannot_be_the_current_one(self) -> None:
        other = torch.device("mtia" if self.accelerator.torch_device != "mtia" else "xpu", 0)
        error = error_of(SettingError, lambda: self.accelerator.set_device(other), f"{other} is another device's")
        assert f"device_index={other!r} cannot be used" in str(error), f"set_device({other!r}) says {str(error)!r}"

    def test_a_device_that_does_not_exist_cannot_be_the_current_one_unless_numbers_stand_for_processes(self) -> None:
        count = self.accelerator.device_count()
        for device in (count, count + 7, *self.device_names(count)):
            for name in ("set_device", "device"):
                if self.accelerator.index_is_rank:
                    self.call(name, device)
                    continue
                error = error_of(
                    SettingError,
                    partial(self.call, name, device),
                    f"{name}({device!r}), where there are {count}: call index_of() in methods that take a device_index",
                )
                assert f"expected a number below {count}, the number of" in str(error), (
                    f"{name}({device!r}) says {str(error)!r}, expected the number of devices"
                )
        self.accelerator.set_device(0)

    def test_every_method_accepts_every_form_of_a_device(self) -> None:
        for name in BY_INDEX:
            expected = self.call(name, 0)
            for device in self.device_names(0):
                result = self.call(name, device)
                assert type(result) is type(expected), (
                    f"{name}({device!r}) is {result!r}, expected what {name}(0) returns, such as {expected!r}"
                )

    def test_a_torch_device_selects_the_device_of_its_number(self) -> None:
        accelerator = self.accelerator
        last = accelerator.device_count() - 1
        for device in self.device_names(last):
            accelerator.set_device(0)
            accelerator.set_device(device)  # type: ignore[arg-type]
            current = accelerator.current_device()
            assert current == last, f"after set_device({device!r}) the current device is {current}, expected {last}"
            accelerator.set_device(0)
            with accelerator.device(device):  # type: ignore[arg-type]
                current = accelerator.current_device()
                assert current == last, f"in `with device({device!r})` the current device is {current}, expected {last}"
            current = accelerator.current_device()
            assert current == 0, f"after `with device({device!r})` the current device is {current}, expected 0 again"
            names = (accelerator.device_name(device), accelerator.device_name(last))  # type: ignore[arg-type]
            assert names[0] == names[1], (
                f"device_name({device!r}) is {names[0]!r}, expected that of {last}, {names[1]!r}"
            )

    def test_a_device_without_a_number_is_the_current_one(self) -> None:
        kind = self.accelerator.torch_device
        for name in BY_INDEX:
            if name != "set_device":
                self.call(name, kind)
        names = (self.accelerator.device_name(kind), self.accelerator.device_name())
        assert names[0] == names[1], (
            f"device_name({kind!r}) is {names[0]!r}, expected the current device's, {names[1]!r}"
        )

    def test_the_architecture_of_a_device_is_one_of_the_targets(self) -> None:
        archs = ("", *self.accelerator.target().arch)
        for index in (None, *range(self.accelerator.device_count())):
            arch = self.accelerator.device_arch(index)
            assert arch in archs, (
                f"device_arch({index}) is {arch!r}, expected one of target()'s, {archs}: the variant that a package has"
                " for that device is chosen by it"
            )
