"""Random numbers: the state of a device's generator, and its seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .device import Devices

if TYPE_CHECKING:
    from types import ModuleType

    import torch
    from torch.types import Device


class RandomNumbers(Devices):
    """The random-number part of the interface."""

    def random(self) -> ModuleType:
        """Returns the module `torch.random`."""
        random: ModuleType = self._torch.random
        return random

    def set_rng_state(self, new_state: torch.Tensor, device_index: Device = None) -> None:
        """Sets the generator's state to one that `get_rng_state` returned."""
        module, index = self._device_module(), self.index_of(device_index)
        if index is None:
            module.set_rng_state(new_state)
        else:
            module.set_rng_state(new_state, index)

    def get_rng_state(self, device_index: Device = None) -> torch.Tensor:
        """Returns the generator's state: a one-dimensional uint8 tensor in host memory."""
        module, index = self._device_module(), self.index_of(device_index)
        state: torch.Tensor = module.get_rng_state() if index is None else module.get_rng_state(index)
        return state

    def manual_seed(self, seed: int) -> torch.Generator | None:
        """Seeds the current device's generator, and returns what torch's own function for the device returns."""
        generator: torch.Generator | None = self._device_module().manual_seed(seed)
        return generator

    def manual_seed_all(self, seed: int) -> torch.Generator | None:
        """Seeds the generators of all devices, and returns what torch's own function for the device returns."""
        generator: torch.Generator | None = self._device_module().manual_seed_all(seed)
        return generator

    def initial_seed(self) -> int:
        """Returns the seed of the current device's generator."""
        return int(self._device_module().initial_seed())

    def default_generator(self, device_index: Device = None) -> torch.Generator:
        """Returns the device's default generator."""
        index = self.index_of(device_index)
        if index is None:
            index = self.current_device()
        generator: torch.Generator = self._device_module().default_generators[index]
        return generator


class OneGenerator(RandomNumbers):
    """The random-number part for a device with a single generator, its `default_generator`, for every number."""

    def set_rng_state(self, new_state: torch.Tensor, device_index: Device = None) -> None:
        """Sets the generator's state to one that `get_rng_state` returned."""
        self.default_generator(device_index).set_state(new_state)

    def get_rng_state(self, device_index: Device = None) -> torch.Tensor:
        """Returns the generator's state: a one-dimensional uint8 tensor in host memory."""
        return self.default_generator(device_index).get_state()

    def manual_seed_all(self, seed: int) -> torch.Generator | None:
        """Seeds the generator, and returns what `manual_seed` returns."""
        return self.manual_seed(seed)

    def initial_seed(self) -> int:
        """Returns the generator's seed."""
        return int(self.default_generator().initial_seed())
