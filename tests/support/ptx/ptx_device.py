"""A GPU that is not there: opforge's launcher, over a stand-in driver whose launches ptx_machine.py executes.

All is real but the silicon: the build (whose images hold the PTX that the machine code is made of), the choice of an
image, the packing of arguments, the launcher's call of the driver. Tensors lie on the CPU. For a process of its own,
whose LD_LIBRARY_PATH names the folder of the stand-in driver: a process loads libcuda once.
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

PTX_WORKER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("triton_worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
compiled = worker._compile

def with_ptx(*told):
    import triton
    from triton.backends.nvidia.compiler import CUDABackend

    CUDABackend.make_cubin = lambda self, ptx, *rest: ptx.encode() + bytes(1)
    return compiled(*told)

worker._compile = with_ptx
sys.exit(worker.main(sys.argv[2]))
"""
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
    """Executes what is launched. `launches` are the functions that ran, `images` the PTX that they came from."""

    def __init__(self) -> None:
        self.launches: list[str] = []
        self.images: dict[bytes, ptx_machine.Kernel] = {}
        self._problem: Exception | None = None
        self._executor = EXECUTOR(self._execute)
        ctypes.CDLL("libcuda.so.1").fake_gpu_executes(self._executor)

    def _execute(self, image: bytes, name: bytes, grid: Any, threads: int, shared: int, parameters: Any) -> None:
        try:
            kernel = self.images.get(image) or self.images.setdefault(image, ptx_machine.Kernel(image.decode()))
            self.launches.append(name.decode())
            assert (kernel.name, kernel.threads) == (name.decode(), threads)
            raw = [ctypes.string_at(parameters[i], size) for i, size in enumerate(kernel.parameters)]
            values = [int.from_bytes(one, "little") for one in raw]
            ptx_machine.run(kernel, ptx_machine.Memory(allocations()), values, grid[:3], shared)
        except Exception as error:
            self._problem = self._problem or error

    def check(self) -> None:
        """Raises what a kernel did wrong since it was last asked."""
        problem, self._problem = self._problem, None
        if problem:
            raise problem


def allocations() -> list[tuple[int, int]]:
    """The address and the bytes of every tensor's storage."""
    found = [one.untyped_storage() for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]
    return [(one.data_ptr(), one.nbytes()) for one in found]


def load(builder: Any, names: Iterable[str] = (), target: str = "cuda:sm_90") -> Any:
    """The op, with those of its kernels whose names hold one of `names`, or all."""

    class OnMachine(builder):  # type: ignore[misc]
        kernels = [one for one in builder.kernels if not names or any(name in one.name for name in names)]

        def toolchain(self, store: Any) -> TritonToolchain:
            made = TritonToolchain(store.layout, store.disk)
            made.argv = (sys.executable, "-I", "-c", f"exec({PTX_WORKER!r})", WORKER)  # one line, for ninja
            return made

    op = OnMachine(target).load()
    op.kernels.raw_stream = lambda device: 0
    return op


def present(processors: int = 3) -> Device:
    """From now on tensors of the CPU pass for a GPU's, with so many multiprocessors; fresh memory holds NaN."""
    from opforge.ops.triton import devices

    torch.Tensor.get_device = lambda self: 0  # type: ignore[method-assign]
    devices.multiprocessor_count = lambda device: processors  # type: ignore[assignment]
    torch.use_deterministic_algorithms(True)
    np.seterr(all="ignore")
    gc.collect()
    gc.freeze()
    return Device()
