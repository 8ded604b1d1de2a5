"""The CPU as an accelerator: its work is synchronous, its memory the process's own, its devices are NUMA nodes."""

from __future__ import annotations

import os
import warnings
from threading import local
from typing import TYPE_CHECKING

from opforge import errors
from opforge.accelerator.host.files import parse_list
from opforge.accelerator.interface.accelerator import INTERFACE_VERSION, Accelerator, OneGenerator
from opforge.accelerator.target import Target
from opforge.fast_path import machine
from opforge.foundation import settings
from opforge.foundation.lazy import cached_property

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    import torch
    from torch.types import Device

    from opforge.accelerator.fallback.device_scope import device_scope
    from opforge.accelerator.host.process_memory import ProcessMemory

"""The variable that lists the NUMA nodes that count as devices, such as `0,2-3`."""
_TENSOR_CLASSES = {
    "bfloat16": "BFloat16Tensor",
    "uint8": "ByteTensor",
    "float64": "DoubleTensor",
    "float32": "FloatTensor",
    "float16": "HalfTensor",
    "int32": "IntTensor",
    "int64": "LongTensor",
}


class _Thread(local):
    device: int | None = None
    """The number that the thread has set, if it has."""


class CPUAccelerator(OneGenerator, Accelerator):
    """The host's processors.

    torch has one CPU device, so a device number only distinguishes the processes on a machine. Memory figures are
    those of the whole process and of its limits, whatever the number.
    """

    name = torch_device = "cpu"
    synchronous = index_is_rank = True
    interface_version = INTERFACE_VERSION
    _oneccl = True
    _visible_devices = (settings.visible_numa_nodes.variable,)
    _exported = ("OMP_", "KMP_", "GOMP_", "GLOO_", "CCL_")

    def __init__(self, root: str = "/") -> None:
        super().__init__()
        self.root = root
        self._thread = _Thread()

    # devices

    def is_available(self) -> bool:
        """Returns True: the CPU can always be used."""
        return True

    def device_name(self, device_index: Device = None) -> str:
        """Returns `cpu`: torch has one CPU device, and `cpu:1` would not compare equal to it."""
        return "cpu"

    def device(self, device_index: Device = None) -> AbstractContextManager[Any]:
        """Returns a context manager in which `current_device` is this number, in the calling thread."""
        return self._device_scope(self, self.index_of(device_index))

    @cached_property
    def _device_scope(self) -> type[device_scope]:
        from opforge.accelerator.fallback.device_scope import device_scope

        return device_scope

    def set_device(self, device_index: Device) -> None:
        """Makes this number the result of `current_device`, in the calling thread.

        A number stands for a process, so it may exceed `device_count()`. A `torch.device` without one changes nothing.
        No core is bound: the launcher does that.
        """
        if (index := self.index_of(device_index)) is not None:
            self._thread.device = index

    def current_device(self) -> int:
        """Returns the number set in this thread, else LOCAL_RANK, else 0."""
        number = self._thread.device
        return _whole_number("LOCAL_RANK", "a process's number on its machine, from 0") if number is None else number

    def current_device_name(self) -> str:
        """Returns `cpu`."""
        return "cpu"

    def device_count(self) -> int:
        """Returns LOCAL_SIZE if a launcher set it, else the number of NUMA nodes on whose cores this process may run.

        Only the nodes in OPFORGE_VISIBLE_NUMA_NODES count, if it is set. The result is at least 1.
        """
        if local_size := _whole_number("LOCAL_SIZE", "the number of processes on this machine"):
            return local_size
        from opforge.accelerator.host.topology import usable_cpus, usable_nodes

        visible = _visible_nodes()
        nodes = usable_nodes(self.root, set(usable_cpus(self.root)))
        return len([node for node in nodes if not visible or node.number in visible]) or 1

    def synchronize(self, device_index: Device = None, *, device: Device = None) -> None:
        """Returns immediately, because all work is synchronous."""

    def _find_target(self) -> Target:
        level = machine.level_here() if self.root == "/" else ""
        if not level:
            from opforge.accelerator.host.cpuid import cpu_level

            level = cpu_level(self.root)
        return Target("cpu", (level,) if level else ())

    def _model(self) -> str:
        from opforge.accelerator.host.cpuinfo import read_cpuinfo

        return read_cpuinfo(self.root).model or self.name

    def _simd(self) -> tuple[str, ...]:
        from opforge.accelerator.host.cpuinfo import read_cpuinfo

        return read_cpuinfo(self.root).simd

    # random numbers: the functions for the host's one generator are in `torch` itself

    def _device_module(self) -> Any:
        return self._torch

    def default_generator(self, device_index: Device = None) -> torch.Generator:
        """Returns the host's one generator."""
        generator: torch.Generator = self._torch.default_generator
        return generator

    # memory

    @cached_property
    def _process(self) -> ProcessMemory:
        from opforge.accelerator.host.process_memory import ProcessMemory

        return ProcessMemory(self.root)

    def get_rss(self) -> int:
        """Returns the bytes of the process's resident set."""
        return self._process.resident()

    def reset_rss(self) -> int:
        """Resets the peak to the current resident set, and returns its bytes."""
        self._process.reset_peak()
        return self.get_rss()

    def empty_cache(self) -> None:
        """Does nothing, because torch keeps no cache of host memory."""

    def memory_allocated(self, device_index: Device = None) -> int:
        """Returns the bytes of the process's resident set: all its memory, not only the tensors'."""
        return self.get_rss()

    def max_memory_allocated(self, device_index: Device = None) -> int:
        """Returns the largest resident set since the start or the last reset, as the kernel counted it."""
        return self._process.peak()

    def reset_peak_memory_stats(self, device_index: Device = None) -> None:
        """Resets the peak to the current resident set; see ProcessMemory for kernels that forbid it."""
        self._process.reset_peak()

    def memory_stats(self, device_index: Device = None) -> dict[str, Any]:
        """Returns the resident set and its peak, by torch's names for allocated and reserved memory."""
        resident, peak = self._process.resident_and_peak()
        return {
            "allocated_bytes.all.current": resident,
            "allocated_bytes.all.peak": peak,
            "reserved_bytes.all.current": resident,
            "reserved_bytes.all.peak": peak,
        }

    memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated
    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def total_memory(self, device_index: Device = None) -> int:
        """Returns the bytes of the machine's memory, or the cgroup's limit if that is lower."""
        return self._process.total()

    def mem_get_info(self, device_index: Device = None) -> tuple[int, int]:
        """Returns (available, total) bytes, both within the cgroup's limit."""
        return self._process.available(), self._process.total()

    # data types

    def is_bf16_supported(self) -> bool:
        """Returns True: a CPU without instructions for bfloat16 computes it slowly."""
        return True

    def is_fp16_supported(self) -> bool:
        """Returns whether matrix products in float16 are native; if not, torch computes them in float32."""
        return self._has_fp16

    @cached_property
    def _has_fp16(self) -> bool:
        try:
            return bool(self._torch.ops.mkldnn._is_mkldnn_fp16_supported())
        except (AttributeError, RuntimeError):  # torch built without oneDNN
            return False

    def tensor_dtypes(self, device_index: Device = None) -> frozenset[torch.dtype]:
        """Returns the dtypes of the tensors that torch holds and converts on the host: those that it converts to."""
        return self._converted

    @cached_property
    def _converted(self) -> frozenset[torch.dtype]:
        module = self._torch
        one, found = module.ones(1), set()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls complex32 experimental
            for dtype in {value for value in vars(module).values() if isinstance(value, module.dtype)}:
                try:
                    one.to(dtype)
                except (RuntimeError, TypeError):  # torch converts to none that is quantized or smaller than a byte
                    continue
                found.add(dtype)
        return frozenset(found)

    def _tensor_maker(self, dtype: str) -> Callable[..., torch.Tensor]:
        tensor_class: Callable[..., torch.Tensor] = getattr(self._torch, _TENSOR_CLASSES[dtype])
        return tensor_class

    # pinning: no device copies from host memory, so nothing needs page-locking

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return tensor.new_empty(tuple(shape))

    def pin_memory(self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        """Returns the tensor itself, as one dimension if neither a copy nor its shape is requested."""
        return tensor if make_copy or match_shape else tensor.reshape(-1)

    # environment

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        """Calls `callback` immediately, and returns its result."""
        return callback()


def _visible_nodes() -> tuple[int, ...]:
    text = settings.visible_numa_nodes()
    try:
        nodes = parse_list(text) if not text.strip("0123456789,-") else ()
    except ValueError:
        nodes = ()
    if text and not nodes:
        setting = settings.visible_numa_nodes
        raise errors.SettingError(setting.variable, text, setting.kind.expected)
    return nodes


def _whole_number(variable: str, meaning: str) -> int:
    text = os.environ.get(variable, "").strip()
    if text and not (text.isascii() and text.isdecimal()):
        raise errors.SettingError(variable, text, f"{meaning}, a whole number")
    return int(text or 0)
