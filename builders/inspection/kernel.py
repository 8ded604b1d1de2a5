"""The resources that a kernel uses on the device."""

from __future__ import annotations

from typing import NamedTuple


class Kernel(NamedTuple):
    """One kernel for one architecture. Sizes are bytes; None if the file does not state a value."""

    name: str
    arch: str
    code: int
    """Bytes of machine code."""
    registers: int | None
    """Per thread (CUDA: 32-bit registers; HIP: vector registers)."""
    shared: int | None
    """Static shared memory of a block."""
    stack: int | None
    """Local memory of a thread: spills, and arrays that do not fit into registers."""
    spills: int | None
    """CUDA: instructions that spill a register or load it back; HIP: spilled registers."""
    copies: int | None = None
    """CUDA from sm_80 on: instructions that copy from global to shared memory asynchronously (cp.async)."""
    waits: int | None = None
    """CUDA from sm_80 on: instructions that wait for such copies, or for other memory in the same way."""
    scalar_registers: int | None = None
    """HIP only."""
    launched: str = ""
    """The name by which a Triton op's library launches it: several kernels may have one `name`."""
