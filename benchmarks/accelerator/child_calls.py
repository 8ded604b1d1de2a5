"""Times each cheap call of opforge's and DeepSpeed's CPU accelerator in turns, in a Python that has both."""

from __future__ import annotations

import json
import sys
import timeit
from typing import Any

CALLS = """
is_synchronized_device() use_host_timers() resolves_data_dependency() handles_memory_backpressure() is_available()
device_name() device_name(0) device() device(0) set_device(0) current_device() current_device_name() device_count()
synchronize() synchronize(0) random() set_rng_state(state) get_rng_state() manual_seed(1) manual_seed_all(1)
initial_seed() default_generator(0) Stream Event stream(None) current_stream() default_stream() empty_cache()
memory_allocated() max_memory_allocated() reset_max_memory_allocated() memory_cached() max_memory_cached()
reset_max_memory_cached() memory_stats() reset_peak_memory_stats() memory_reserved() max_memory_reserved()
total_memory() available_memory() range_push('step') range_pop() lazy_call(function) communication_backend_name()
is_triton_supported() is_bf16_supported() is_fp16_supported() is_fp64_supported() supported_dtypes()
prefer_triton_grouped_mm() create_graph() is_current_stream_capturing() BFloat16Tensor ByteTensor
DoubleTensor FloatTensor HalfTensor IntTensor LongTensor pin_memory(tensor) is_pinned(tensor) unpin_memory(tensor)
pin_empty(3,dtype=dtype) pin_empty_like(tensor) pin_memory_alignment() on_accelerator(tensor) op_builder_dir()
create_op_builder(builder) get_op_builder(builder) build_extension() export_envs() visible_devices_envs()
set_visible_devices_envs(environment,[0]) get_compile_backend() set_compile_backend('inductor')
""".split()  # noqa: SIM905  # the calls are easier to read as words
"""What follows `accelerator.` in each call."""
SECONDS = 2e-3
"""Seconds of one sample, of each accelerator."""


def main() -> None:
    """Prints one JSON object: by call, the seconds of each round, for opforge and for DeepSpeed."""
    rounds = int(sys.argv[1])
    import torch
    from deepspeed.accelerator import abstract_accelerator, cpu_accelerator

    from opforge.accelerator import CPUAccelerator

    tensor = torch.ones(3)
    arguments: dict[str, Any] = {
        "tensor": tensor,
        "state": torch.get_rng_state(),
        "dtype": tensor.dtype,
        "function": int,
        "builder": "CPUAdamBuilder",
        "environment": {},
    }
    ours, theirs = CPUAccelerator(), cpu_accelerator.CPU_Accelerator()
    samples = {}
    for call in CALLS:
        timers = [
            timeit.Timer(f"accelerator.{call}", globals={**arguments, "accelerator": accelerator})
            for accelerator in (ours, theirs)
        ]
        samples[call] = _in_turns(timers, rounds)
    offered = {name for name in vars(abstract_accelerator.DeepSpeedAccelerator) if not name.startswith("_")}
    missing = sorted(offered - {call.partition("(")[0] for call in CALLS})
    print(json.dumps({"samples": samples, "left_out": missing}))


def _in_turns(timers: list[timeit.Timer], rounds: int) -> list[list[float]]:
    first = [timer.timeit(3) / 3 for timer in timers]  # imports what the call needs
    first = [timer.timeit(3) / 3 for timer in timers]
    numbers = [max(1, int(SECONDS / seconds)) for seconds in first]
    samples: list[list[float]] = [[] for _ in timers]
    for _ in range(rounds):
        for timer, number, results in zip(timers, numbers, samples, strict=True):
            results.append(timer.timeit(number) / number)
    return samples


if __name__ == "__main__":
    main()
