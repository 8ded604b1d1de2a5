"""The memory that a call needs beside what was there before."""

from __future__ import annotations

from opforge.accelerator.host.process_memory import ProcessMemory


def peak_of(call):
    """Returns the most bytes of the process during the call, less those before it. Earlier peaks do not count."""
    memory = ProcessMemory()
    memory.reset_peak()
    before = memory.resident()
    call()
    return memory.peak() - before
