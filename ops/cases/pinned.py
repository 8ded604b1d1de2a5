"""Cases of locked memory: what it costs to allocate and free."""

from __future__ import annotations

import ctypes

from opforge.ops.cases.form import OURS, Call, Case, MissingError, Place
from opforge.ops.cases.rivals import DEEPSPEED, TORCH, deepspeed

FILL = "fill"
SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 28)


def _handle_call(place: Place, handle: object) -> Call:
    import torch

    example = torch.empty(0, dtype=torch.uint8)

    def call() -> None:
        tensor = handle.new_cpu_locked_tensor(place.size, example)  # type: ignore[attr-defined]
        handle.free_cpu_locked_tensor(tensor)  # type: ignore[attr-defined]

    return call


def _ours(place: Place) -> Call:
    from opforge.builders.cpu.pin_memory import PinMemoryBuilder

    return _handle_call(place, PinMemoryBuilder().load().pin_handle())


def _torch(place: Place) -> Call:
    import torch

    if not torch.accelerator.is_available():
        raise MissingError("it needs a GPU to lock memory")
    return lambda: torch.zeros(place.size, dtype=torch.uint8, pin_memory=True)


def _deepspeed(place: Place) -> Call:
    builders = deepspeed(place, "deepspeed.ops.op_builder", "PinMemoryBuilder")
    return _handle_call(place, builders.PinMemoryBuilder().load().pin_handle())


def _fill(place: Place) -> Call:
    """Returns what no allocation of so many zeros can do without: their writing, here to memory that is mapped."""
    memory = ctypes.create_string_buffer(place.size)
    return lambda: ctypes.memset(memory, 0, place.size)


PIN_MEMORY = (
    Case(
        "allocate and free",
        SIZES,
        lambda place: place,
        {OURS: _ours, TORCH: _torch, DEEPSPEED: _deepspeed, FILL: _fill},
        (FILL,),
        lambda size, itemsize: size,
        size_unit="bytes",
        dtypes=("uint8",),
        quick=(1 << 24,),
    ),
)
