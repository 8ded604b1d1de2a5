"""What the makers' accelerators share: telling without opening a device whether one can be used.

A device that was opened before a fork cannot be used after it, so nothing here asks a runtime library: the files that
the driver makes, the package that brings the device to torch, and the variables that hide devices are looked at.
"""

from __future__ import annotations

import glob
import importlib
import os
from typing import TYPE_CHECKING

from opforge.accelerator.interface.accelerator import INTERFACE_VERSION, Accelerator

if TYPE_CHECKING:
    from typing import Any, ClassVar


class Vendor(Accelerator):
    """A device that needs a driver and a package. A subclass names both, and overrides where its device differs."""

    interface_version = INTERFACE_VERSION
    package: ClassVar[str]
    """The module whose import brings the device to torch."""
    device_files: ClassVar[str]
    """A pattern, below the root, of the files that the driver makes: one for each device."""
    hiding: ClassVar[tuple[str, ...]] = ("", "-1")
    """Values of a visible-devices variable that leave no device."""

    def __init__(self) -> None:
        super().__init__()
        self._module: Any = None

    def _device_module(self) -> Any:
        if self._module is None:
            importlib.import_module(self.package)
            self._module = super()._device_module()
        return self._module

    def is_available(self) -> bool:
        """Whether the package can be imported and the driver shows a device. Opens none: a later fork is unharmed."""
        return not self._obstacles()

    def unavailable_reason(self) -> str:
        """Every obstacle, in words."""
        return "; ".join(self._obstacles())

    def _obstacles(self) -> list[str]:
        obstacles = [self._package_obstacle(), self._hidden(), self._device_obstacle()]
        return [obstacle for obstacle in obstacles if obstacle]

    def _package_obstacle(self) -> str:
        try:
            importlib.import_module("torch")
            importlib.import_module(self.package)
        except ModuleNotFoundError as problem:
            missing = problem.name or ""
            if missing == "torch" or f"{self.package}.".startswith(f"{missing}."):
                return f"the package {missing} is not installed"
            return f"importing {self.package} failed: {problem}"
        except Exception as problem:  # a package whose driver is missing may raise anything
            return f"importing {self.package} failed: {type(problem).__name__}: {problem}"
        return ""

    def _hidden(self) -> str:
        for variable in self.visible_devices_envs():
            value = os.environ.get(variable)
            if value is not None and value.strip() in self.hiding:
                return f"{variable}={value!r} hides every device"
        return ""

    def _device_obstacle(self) -> str:
        return "" if self._files(self.device_files) else f"no device: the driver has made no /{self.device_files}"

    def _files(self, pattern: str) -> list[str]:
        return sorted(glob.glob(os.path.join(self.root, pattern)))
