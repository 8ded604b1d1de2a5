"""Random numbers: the state of a device's generator, and its seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .device import Devices

if TYPE_CHECKING:
    from types import ModuleType

    import torch


class RandomNumbers(Devices):
    """The random-number part of the interface."""

    def random(self) -> ModuleType:
        """Returns the module `torch.random`."""
        import torch

        return torch.random

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        """Sets the generator's state to one that `get_rng_state` returned."""
        module = self._device_module()
        if device_index is None:
            module.set_rng_state(new_state)
        else:
            module.set_rng_state(new_state, device_index)

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        """Returns the generator's state: a one-dimensional uint8 tensor in host memory."""
        module = self._device_module()
        state: torch.Tensor = module.get_rng_state() if device_index is None else module.get_rng_state(device_index)
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

    def default_generator(self, device_index: int | None = None) -> torch.Generator:
        """Returns the device's default generator."""
        index = self.current_device() if device_index is None else device_index
        generator: torch.Generator = self._device_module().default_generators[index]
        return generator


class OneGenerator(RandomNumbers):
    """The random-number part for a device with a single generator, its `default_generator`, for every number."""

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        """Sets the generator's state to one that `get_rng_state` returned."""
        self.default_generator().set_state(new_state)

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        """Returns the generator's state: a one-dimensional uint8 tensor in host memory."""
        return self.default_generator().get_state()

    def manual_seed_all(self, seed: int) -> torch.Generator | None:
        """Seeds the generator, and returns what `manual_seed` returns."""
        return self.manual_seed(seed)

    def initial_seed(self) -> int:
        """Returns the generator's seed."""
        return int(self.default_generator().initial_seed())
