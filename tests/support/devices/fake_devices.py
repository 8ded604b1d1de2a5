"""Fake devices, and what each vendor's fake module offers for one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from support.devices.recorded_modules import NAMES, real_names

from opforge.accelerator.fallback import streams

TOTAL, FREE, ALLOCATED, PEAK, RESERVED = 1000, 600, 100, 300, 400
"""Bytes that every fake device reports."""


class FakeDevice:
    """The state behind a fake module: two devices with a generator each, streams on the host, recorded calls."""

    module: Any
    """The fake module, set when it is installed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.current = 0
        self.capturing = False
        self.ranges: list[str] = []
        """The open profiler ranges."""
        self.calls: list[str] = []
        """Calls that have no other visible effect."""
        self.generators = [torch.Generator(), torch.Generator()]
        self.properties = SimpleNamespace(total_memory=TOTAL, has_fp16=True, has_fp64=False, uuid="1111-aaaa")
        self.capability = (9, 0)

    def members(self) -> dict[str, Any]:
        """Returns the members that nearly all vendors' modules have, with torch.cuda's arguments."""
        graph_class = type("Graph", (), {"replay": lambda graph: self.calls.append("replay")})
        return {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: 2,
            "current_device": lambda: self.current,
            "set_device": lambda device: setattr(self, "current", device),
            "device": self.device_scope,
            "synchronize": lambda device=None: self.calls.append(f"synchronize {device}"),
            "get_device_properties": lambda device=None: self.properties,
            "get_device_name": lambda device=None: f"Recorded{self.name.upper()}",
            "manual_seed": lambda seed: self.seed(self.generators[self.current], seed),
            "manual_seed_all": lambda seed: [self.seed(generator, seed) for generator in self.generators] and None,
            "initial_seed": lambda: self.generators[self.current].initial_seed(),
            "get_rng_state": lambda device="x": self.generators[self.index(device)].get_state(),
            "set_rng_state": lambda new_state, device="x": self.set_state(new_state, device),
            "default_generators": tuple(self.generators),
            "Stream": streams.HostStream,
            "Event": streams.HostEvent,
            "stream": streams.stream_scope,
            "set_stream": streams.set_stream,
            "current_stream": lambda device=None: streams.current_stream(),
            "default_stream": lambda device=None: streams.DEFAULT_STREAM,
            "empty_cache": lambda: self.calls.append("empty_cache"),
            "memory_allocated": lambda device=None: ALLOCATED,
            "max_memory_allocated": lambda device=None: PEAK,
            "memory_reserved": lambda device=None: RESERVED,
            "max_memory_reserved": lambda device=None: RESERVED,
            "memory_stats": lambda device=None: {
                "allocated_bytes.all.current": ALLOCATED,
                "allocated_bytes.all.peak": PEAK,
            },
            "reset_accumulated_memory_stats": lambda device=None: self.calls.append("reset_accumulated_memory_stats"),
            "reset_peak_memory_stats": lambda device=None: self.calls.append("reset_peak_memory_stats"),
            "mem_get_info": lambda device=None: (FREE, TOTAL),
            "is_bf16_supported": lambda: True,
            "_lazy_call": lambda callable, **kwargs: callable() and None,
            f"{self.name.upper()}Graph": graph_class,
            "graph": self.capture_scope,
            "graph_pool_handle": lambda: (0, 1),
            "is_current_stream_capturing": lambda: self.capturing,
        }

    def seed(self, generator: torch.Generator, seed: int) -> None:
        """Seeds the generator, and returns None as torch.cuda does."""
        generator.manual_seed(seed)

    def set_state(self, new_state: torch.Tensor, device: Any) -> None:
        """Sets the state of the device's generator, and returns None as torch.cuda does."""
        self.generators[self.index(device)].set_state(new_state)

    def index(self, device: Any) -> int:
        """Returns the device's number, the current one if it is not a number."""
        return device if isinstance(device, int) else self.current

    @contextlib.contextmanager
    def device_scope(self, device: int) -> Any:
        """Makes the device the current one inside the block."""
        previous, self.current = self.current, device
        yield
        self.current = previous

    @contextlib.contextmanager
    def capture_scope(self, graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "") -> Any:
        """Makes `capturing` true inside the block, and notes a mode that is not the default."""
        if capture_error_mode:
            self.calls.append(f"capture {pool} {capture_error_mode}")
        self.capturing = True
        yield
        self.capturing = False

    def range_module(self) -> Any:
        """Returns a fake module of profiler ranges, such as NVTX."""
        return SimpleNamespace(
            range_push=self.ranges.append, range_pop=lambda: self.ranges.pop() if self.ranges else -1
        )


def cuda(device: FakeDevice) -> dict[str, Any]:
    runtime = SimpleNamespace(
        cudaHostRegister=lambda address, size, flags: device.calls.append("register") or 0,
        cudaHostUnregister=lambda address: device.calls.append("unregister") or 0,
    )
    return {
        **device.members(),
        "init": lambda: None,
        "nvtx": device.range_module(),
        "cudart": lambda: runtime,
        "check_error": lambda res: None,
        "get_device_capability": lambda device_index=None: device.capability,
    }


def xpu(device: FakeDevice) -> dict[str, Any]:
    # torch 2.10 has no graphs of XPUs: those who capture one get the emulation on the host.
    graphs = {"XPUGraph", "graph", "graph_pool_handle", "is_current_stream_capturing"} - real_names("xpu")
    return {name: value for name, value in device.members().items() if name not in {"default_stream", *graphs}}


def mps(device: FakeDevice) -> dict[str, Any]:
    class Event:
        """As torch.mps.Event: no method takes a stream, because there is one queue."""

        def __init__(self, enable_timing: bool = False) -> None:
            self.host = streams.HostEvent(enable_timing)

        def record(self) -> None:
            self.host.record()

        def wait(self) -> None:
            device.calls.append("wait")

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            device.calls.append("event synchronize")

        def elapsed_time(self, end_event: Event) -> float:
            return self.host.elapsed_time(end_event.host)

    members = device.members()
    shared = ("is_available", "manual_seed", "empty_cache", "get_rng_state", "set_rng_state")
    return {
        **{name: members[name] for name in shared},
        "device_count": lambda: 1,
        "Event": Event,
        "synchronize": lambda: device.calls.append("synchronize"),
        "_get_default_mps_generator": lambda: device.generators[0],
        "current_allocated_memory": lambda: ALLOCATED,
        "driver_allocated_memory": lambda: RESERVED,
        "recommended_max_memory": lambda: TOTAL,
    }


def npu(device: FakeDevice) -> dict[str, Any]:
    runtime = SimpleNamespace(
        npuHostRegister=lambda address, size, flags: device.calls.append(f"register {flags}") or 0,
        npuHostUnregister=lambda address: 0,
    )
    mstx = SimpleNamespace(
        range_start=lambda message, stream=None: device.ranges.append(message) or len(device.ranges),
        range_end=lambda number: device.ranges.pop(),
    )
    members = {"npurt": lambda: runtime, "mstx": mstx, "get_device_capability": lambda index=None: None}
    return {**device.members(), **members}


def mlu(device: FakeDevice) -> dict[str, Any]:
    return {**device.members(), "cnpx": device.range_module(), "get_device_capability": lambda index=None: (5, 0)}


def supa(device: FakeDevice) -> dict[str, Any]:
    runtime = SimpleNamespace(
        supaHostRegister=lambda address, size, flags: device.calls.append("register") or 0,
        supaHostUnregister=lambda address: device.calls.append("unregister") or 0,
    )
    members = {"brtx": device.range_module(), "supart": lambda: runtime, "check_error": lambda res: None}
    return {**device.members(), **members}


def klxpu(device: FakeDevice) -> dict[str, Any]:
    members = device.members()
    members["CUDAGraph"] = members.pop("KLXPUGraph")
    properties = {"get_device_capability": lambda index=None: (8, 0), "nvtx": device.range_module()}
    return {**members, **properties}


def sdaa(device: FakeDevice) -> dict[str, Any]:
    return {name: value for name, value in device.members().items() if name in NAMES["sdaa"]}


def hpu(device: FakeDevice) -> dict[str, Any]:
    absent = {"_lazy_call", "empty_cache", "default_generators", "is_current_stream_capturing", "graph_pool_handle"}

    @contextlib.contextmanager
    def graph(hpu_graph: Any, stream: Any = None, dry_run: bool = False) -> Any:
        yield

    stats = {"Limit": TOTAL, "InUse": ALLOCATED, "MaxInUse": PEAK}
    generators = device.generators[:1]
    return {
        **{name: value for name, value in device.members().items() if name not in absent},
        "device_count": lambda: 1,
        "synchronize": lambda: device.calls.append("synchronize"),
        "current_stream": streams.current_stream,
        "default_stream": lambda: streams.DEFAULT_STREAM,
        "memory_stats": lambda device=None: dict(stats),
        "memory_reserved": lambda device=None: TOTAL,
        "max_memory_reserved": lambda device=None: TOTAL,
        "mem_get_info": lambda device=None: (TOTAL - ALLOCATED, TOTAL),
        "get_device_properties": lambda device=None: "(sramBaseAddress=0x0, dramSize=0x18)",
        "get_device_capability": lambda device=None: "1.20.0",
        "graph": graph,
        "random": SimpleNamespace(
            default_generators=generators,
            get_rng_state=lambda device="hpu": generators[0].get_state(),
            set_rng_state=lambda new_state, device="hpu": generators[0].set_state(new_state),
        ),
    }


MEMBERS: dict[str, Callable[[FakeDevice], dict[str, Any]]] = {
    function.__name__: function for function in (cuda, xpu, mps, npu, mlu, supa, klxpu, sdaa, hpu)
}
"""Accelerator's name -> a function that returns the members of its fake module."""
