"""Intel's GPUs, through a torch that is built for XPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.accelerator.host.files import read_text
from opforge.accelerator.vendors.vendor import Vendor

if TYPE_CHECKING:
    from typing import Any

_INTEL = "0x8086"


class XPUAccelerator(Vendor):
    """A device is one GPU, or one tile of a GPU."""

    name = torch_device = "xpu"
    package = "torch"
    torch_builds = {"xpu": "XPU"}
    device_files = "dev/dri/renderD[0-9]*"
    hiding_values = ()
    triton_backend = True
    _communication_backend = "xccl"  # part of torch
    _oneccl = True
    _visible_devices = ("ZE_AFFINITY_MASK",)
    _exported = ("CCL_", "FI_", "I_MPI_")

    def _device_problem(self) -> str | None:
        nodes = [path.rpartition("/")[2] for path in self._files(self.device_files)]
        # WSL's driver makes one file for all vendors' devices, and /sys does not show whose device it is.
        if self._files("dev/dxg") or any(
            (read_text(self.root, f"sys/class/drm/{node}/device/vendor") or "").strip() == _INTEL for node in nodes
        ):
            return None
        return f"no device: none of {', '.join(nodes)} is Intel's" if nodes else super()._device_problem()

    def is_fp16_supported(self) -> bool:
        """Returns whether the current device computes in float16."""
        return bool(self._properties().has_fp16)

    def is_fp64_supported(self) -> bool:
        """Returns whether the current device computes in float64; many client GPUs do not."""
        return bool(self._properties().has_fp64)

    def _properties(self) -> Any:
        return self._device_module().get_device_properties()
