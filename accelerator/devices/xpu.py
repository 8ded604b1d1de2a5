"""Intel's GPUs, by torch's own xpu build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.accelerator.host.files import read_text
from opforge.accelerator.vendors.vendor import Vendor

if TYPE_CHECKING:
    from typing import Any

_INTEL = "0x8086"


class XPUAccelerator(Vendor):
    """One GPU, or one tile of one, a device."""

    name = torch_device = "xpu"
    package = "torch"
    device_files = "dev/dri/renderD[0-9]*"
    hiding = ()
    triton_backend = True
    _communication_backend = "xccl"  # which torch brings along
    _oneccl = True
    _visible_devices = ("ZE_AFFINITY_MASK",)
    _exported = ("CCL_", "FI_", "I_MPI_")

    def _package_obstacle(self) -> str:
        obstacle = super()._package_obstacle()
        if obstacle:
            return obstacle
        import torch

        built = getattr(torch.version, "xpu", None) is not None
        return "" if built else f"this torch ({torch.__version__}) is built without XPU"

    def _device_obstacle(self) -> str:
        nodes = [path.rpartition("/")[2] for path in self._files(self.device_files)]
        # On WSL the driver makes one file for all makers, and /sys does not tell whose device it is.
        if self._files("dev/dxg") or any(
            (read_text(self.root, f"sys/class/drm/{node}/device/vendor") or "").strip() == _INTEL for node in nodes
        ):
            return ""
        return f"no device: none of {', '.join(nodes)} is Intel's" if nodes else super()._device_obstacle()

    def is_fp16_supported(self) -> bool:
        """Whether the current device has float16."""
        return bool(self._properties().has_fp16)

    def is_fp64_supported(self) -> bool:
        """Whether the current device has float64: many client GPUs have not."""
        return bool(self._properties().has_fp64)

    def _properties(self) -> Any:
        return self._device_module().get_device_properties()
