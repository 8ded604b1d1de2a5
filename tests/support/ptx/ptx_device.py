"""An emulated GPU: opforge's launcher calls a fake driver (gpu/fake_driver.c), and ptx_machine.py runs the launches.

Everything but the device is real: the build (its images hold the PTX instead of machine code), the choice of an image,
the packing of arguments, the launcher's calls of the driver. Tensors are on the CPU. It needs a process of its own,
whose LD_LIBRARY_PATH names the folder of the fake driver, since a process loads libcuda once.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from support.ptx import ptx_machine

from opforge.builders.toolchains.triton import WORKER, TritonToolchain
from opforge.ops.cases.traffic import TRAFFIC

PTX_WORKER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("triton_worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
compiled = worker._compile

def with_ptx(*arguments):
    import triton
    from triton.backends.nvidia.compiler import CUDABackend

    CUDABackend.make_cubin = lambda self, ptx, *rest: ptx.encode() + bytes(1)
    return compiled(*arguments)

worker._compile = with_ptx
sys.exit(worker.main(sys.argv[2]))
"""
MOST = 1.05
"""The most bytes that a kernel may move, as a share of the least possible."""
EXECUTOR = ctypes.CFUNCTYPE(
    None,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_uint,
    ctypes.c_uint,
    ctypes.POINTER(ctypes.c_void_p),
)


class Device:
    """Executes launches.

    `launches` are the names of the functions that ran, `images` the PTX that was parsed, `traffic` the bytes that each
    launch read and wrote, by the address of the allocation. `override` is PTX that runs in place of every image.
    """

    def __init__(self) -> None:
        self.launches: list[str] = []
        self.images: dict[bytes, ptx_machine.Kernel] = {}
        self.traffic: list[dict[str, dict[int, int]]] = []
        self.override = ""
        self._error: Exception | None = None
        self._checked = 0  # the launches up to the last check
        self._executor = EXECUTOR(self._execute)
        ctypes.CDLL("libcuda.so.1").fake_gpu_executes(self._executor)

    def _execute(self, image: bytes, name: bytes, grid: Any, threads: int, shared: int, parameters: Any) -> None:
        try:
            image = self.override.encode() or image
            kernel = self.images.get(image) or self.images.setdefault(image, ptx_machine.Kernel(image.decode()))
            self.launches.append(name.decode())
            assert (kernel.name, kernel.threads) == (name.decode(), threads)
            data = [ctypes.string_at(parameters[i], size) for i, size in enumerate(kernel.parameters)]
            values = [int.from_bytes(parameter, "little") for parameter in data]
            memory = ptx_machine.Memory(allocations())
            self.traffic.append(memory.traffic)
            ptx_machine.run(kernel, memory, values, grid[:3], shared)
        except Exception as error:  # ctypes would print it and go on
            self._error = self._error or error

    def check(self, launched: bool = True) -> None:
        """Raises the first error of a launch since the last check; with `launched`, an error if there was none."""
        was_launched, self._checked = self._checked < len(self.launches), len(self.launches)
        error, self._error = self._error, None
        if error:
            raise error
        assert was_launched or not launched, "no kernel was launched: another implementation computed the results"

    def check_traffic(self, function: str, first: torch.Tensor, *others: torch.Tensor, since: int = -1) -> None:
        """Checks that the launches from `since` on moved at most MOST of the bytes that are stated for a function.

        Only `first`, its first input, and `others` count: caches serve what all rows share.
        """
        self.check(launched=False)
        addresses = {tensor.data_ptr() for tensor in (first, *others)}
        for way in ("read", "written"):
            least = getattr(TRAFFIC[function], way) * first.numel() * first.itemsize
            moved = sum(launch[way].get(address, 0) for launch in self.traffic[since:] for address in addresses)
            assert least <= moved <= MOST * least, f"{function}: {moved} bytes were {way}, {least} are the least"


def allocations() -> list[tuple[int, int]]:
    """Returns the address and the bytes of every tensor's storage."""
    tensors = [tensor for tensor in gc.get_objects() if type(tensor) in (torch.Tensor, torch.nn.Parameter)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return [(storage.data_ptr(), storage.nbytes()) for storage in storages]


class PTXToolchain(TritonToolchain):
    """Triton, with images that hold PTX instead of machine code."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.argv = (sys.executable, "-I", "-c", f"exec({PTX_WORKER!r})", WORKER)  # one line, for ninja


def load(builder: Any, names: Iterable[str] = (), target: str = "cuda:sm_90") -> Any:
    """Returns the op with those kernels whose names contain one of `names`; without `names`, with all."""

    class OnMachine(builder):  # type: ignore[misc]
        kernels = [kernel for kernel in builder.kernels if not names or any(name in kernel.name for name in names)]
        toolchain = f"{__name__}:PTXToolchain"

    op = OnMachine(target).load()
    op.kernels.raw_stream = lambda device: 0
    return op


def present(processors: int = 3) -> Device:
    """Makes tensors of the CPU pass for those of a GPU with so many multiprocessors; new memory holds NaN.

    Front ends must be imported later: they keep the function that says where a tensor is.
    """
    from opforge.ops import host_op

    host_op.on_host = lambda tensor: False  # type: ignore[assignment]
    from opforge.ops.triton import devices

    torch.Tensor.get_device = lambda self: 0  # type: ignore[method-assign]
    devices.multiprocessor_count = lambda device: processors  # type: ignore[assignment]
    torch.use_deterministic_algorithms(True)
    np.seterr(all="ignore")
    gc.collect()
    gc.freeze()
    return Device()
