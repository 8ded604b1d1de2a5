"""Cases of locked memory: the cost of allocating and freeing it."""

from __future__ import annotations

import ctypes
from typing import Any

from opforge.foundation.lazy_torch import torch
from opforge.ops.cases.case import Call, Case, MissingError, Place, Prepared
from opforge.ops.cases.rivals import DEEPSPEED, TORCH, deepspeed

FILL = "fill"
SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 28)


def _handle_call(place: Place, handle: object) -> Call:
    example = torch.empty(0, dtype=torch.uint8)

    def call() -> None:
        tensor = handle.new_cpu_locked_tensor(place.size, example)  # type: ignore[attr-defined]
        handle.free_cpu_locked_tensor(tensor)  # type: ignore[attr-defined]

    return call


def _torch(inputs: Prepared) -> Call:
    if not torch.accelerator.is_available():
        raise MissingError("it needs a GPU to lock memory")
    return lambda: torch.zeros(inputs.place.size, dtype=torch.uint8, pin_memory=True)


def _deepspeed(inputs: Prepared) -> Call:
    builders = deepspeed(inputs.place, "deepspeed.ops.op_builder", "PinMemoryBuilder")
    return _handle_call(inputs.place, builders.PinMemoryBuilder().load().pin_handle())


def _fill(inputs: Prepared) -> Call:
    """Returns what no allocation of so many zeros can do without: their writing, here to memory that is mapped."""
    size = inputs.place.size
    memory = ctypes.create_string_buffer(size)
    return lambda: ctypes.memset(memory, 0, size)


def locked() -> int:
    """Returns how many bytes the kernel has locked for this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmLck:"))


def _is_locked(loaded: Any, _device: str) -> None:
    handle, before = loaded.pin_handle(), locked()
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = handle.new_cpu_locked_tensor(5000, torch.empty(0, dtype=dtype))
        assert tensor.dtype == dtype and tensor.shape == (5000,), f"{tensor.dtype} {tuple(tensor.shape)}"
        assert not tensor.any() and handle.is_pinned(tensor), f"{dtype}: the memory is not zero, or not locked"
        kernels = locked() - before
        assert kernels >= tensor.nbytes, f"the kernel has locked {kernels} bytes, expected {tensor.nbytes}"
        assert handle.free_cpu_locked_tensor(tensor), "the memory is not the handle's"
    assert locked() == before, f"{locked() - before} bytes are still locked"


PIN_MEMORY = (
    Case(
        "allocate and free",
        lambda place: (),
        checks={"memory is zero, and locked until it is freed": _is_locked},
        sizes=SIZES,
        ours=lambda inputs: _handle_call(inputs.place, inputs.loaded.pin_handle()),
        rivals={TORCH: _torch, DEEPSPEED: _deepspeed, FILL: _fill},
        baseline=(FILL,),
        amount=lambda size, itemsize: size,
        size_unit="bytes",
        dtypes=("uint8",),
        quick=(1 << 24,),
    ),
)
