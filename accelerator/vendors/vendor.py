"""The base of the vendors' accelerators: it finds out whether a device can be used without opening one.

A process that opened a device cannot use it in its forks. So no runtime library is called here: only the files that the
driver makes, the package that adds the device to torch, and the variables that hide devices are checked.
"""

from __future__ import annotations

import glob
import importlib
import os
from typing import TYPE_CHECKING

from opforge.accelerator.interface.accelerator import INTERFACE_VERSION, Accelerator
from opforge.foundation.lazy import cached_property

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, ClassVar


class Vendor(Accelerator):
    """A device that needs a driver and a package. A subclass names both, and overrides what differs."""

    interface_version = INTERFACE_VERSION
    package: ClassVar[str]
    """The module whose import adds the device to torch."""
    torch_builds: ClassVar[Mapping[str, str]] = {}
    """Attribute of `torch.version` -> its name in messages. One must be set, unless the table is empty."""
    device_files: ClassVar[str]
    """A pattern, relative to the root, of the files that the driver makes: one for each device."""
    hiding_values: ClassVar[tuple[str, ...]] = ("", "-1")
    """The values of a visible-devices variable that leave no device."""
    range_module: ClassVar[str] = ""
    """The name in the device's module of the vendor's profiler ranges, such as `nvtx`; empty: ITT is used."""

    @cached_property
    def _module(self) -> Any:
        importlib.import_module(self.package)
        return super()._device_module()

    def _device_module(self) -> Any:
        return self._module

    def is_available(self) -> bool:
        """Returns whether the package can be imported and the driver shows a device.

        Opens no device, so that forks can use it.
        """
        return not self._problems()

    def unavailable_reason(self) -> str:
        """Returns every problem, in words."""
        return "; ".join(self._problems())

    def _problems(self) -> list[str]:
        problems = [self._package_problem(), self._visibility_problem(), self._device_problem()]
        return [problem for problem in problems if problem is not None]

    def _package_problem(self) -> str | None:
        try:
            importlib.import_module("torch")
            importlib.import_module(self.package)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if missing == "torch" or f"{self.package}.".startswith(f"{missing}."):
                return f"the package {missing} is not installed"
            return f"importing {self.package} failed: {error}"
        except Exception as error:  # a package whose driver is missing may raise anything
            return f"importing {self.package} failed: {type(error).__name__}: {error}"
        version = torch_version()
        if not self.torch_builds or any(getattr(version, attribute, None) for attribute in self.torch_builds):
            return None
        builds = " and ".join(f"without {label}" for label in self.torch_builds.values())
        return f"this torch ({version.__version__}) is built {builds}"

    def _visibility_problem(self) -> str | None:
        for variable in self.visible_devices_envs():
            value = os.environ.get(variable)
            if value is not None and value.strip() in self.hiding_values:
                return f"{variable}={value!r} hides every device"
        return None

    def _device_problem(self) -> str | None:
        return None if self._files(self.device_files) else f"no device: the driver has made no /{self.device_files}"

    def _files(self, pattern: str) -> list[str]:
        return sorted(glob.glob(os.path.join(self.root, pattern)))

    @cached_property
    def _ranges(self) -> Any:
        return getattr(self._module, self.range_module) if self.range_module else super()._ranges


def torch_version() -> Any:
    """Returns the module `torch.version`. None if torch is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch.version
