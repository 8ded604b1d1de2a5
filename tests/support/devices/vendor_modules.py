"""Recorded stand-ins for the makers' modules (`torch.cuda`, `torch.npu`, ...), for machines without the hardware.

A stand-in offers no name that the real module lacks, refuses a call that the real function would not take, and fails
loudly where it is asked for a name that the real module has and the stand-in does not answer. For cuda, xpu and mps the
real modules are in every torch, and are asked. For the others the names are recorded here, from
- npu: `__all__` of torch_npu/npu/__init__.py (Ascend/pytorch), and `_lazy_call`, `default_generators` below it;
- mlu: `__all__` of torch_mlu/mlu/__init__.py (Cambricon/torch_mlu), and `_lazy_call`;
- supa: `__all__` of torch_supa/supa/__init__.py (BIRENSUPA/torch-supa), and what it imports from .utils;
- hpu: habana_frameworks/torch/hpu/{__init__,events,graphs,memory,random,streams}.py (HabanaAI/gaudi-pytorch-bridge);
- sdaa: no source is public: the names that DeepSpeed 0.19.8's accelerator for it and accelerate call.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import types
from types import SimpleNamespace
from typing import Any

import torch

from opforge.accelerator import select
from opforge.accelerator.fallback import streams
from opforge.accelerator.vendors import nvidia

CUDA_LIKE = """
Event Stream StreamContext BFloat16Tensor ByteTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor _lazy_call
can_device_access_peer current_device current_stream default_generators default_stream device device_count empty_cache
get_device_name get_device_properties get_rng_state get_rng_state_all graph graph_pool_handle init initial_seed
ipc_collect is_available is_bf16_supported is_current_stream_capturing is_initialized make_graphed_callables manual_seed
manual_seed_all max_memory_allocated max_memory_cached max_memory_reserved mem_get_info memory_allocated memory_cached
memory_reserved memory_snapshot memory_stats memory_stats_as_nested_dict memory_summary reset_accumulated_memory_stats
reset_max_memory_allocated reset_max_memory_cached reset_peak_memory_stats seed seed_all set_device set_rng_state
set_rng_state_all set_stream stream synchronize get_device_capability
"""
NAMES = {
    "npu": frozenset((CUDA_LIKE + "NPUGraph mstx npurt device_of utilization set_option config").split()),
    "mlu": frozenset((CUDA_LIKE + "MLUGraph cnpx cnrt check_error device_of graphs memory random streams").split()),
    "supa": frozenset((CUDA_LIKE + "SUPAGraph brtx supart check_error bccl profiler random MemPool").split()),
    "hpu": frozenset(
        """
        Event HPUGraph Stream StreamContext can_device_access_peer current_device current_stream default_stream device
        device_count device_of get_arch_list get_device_capability get_device_name get_device_properties get_rng_state
        get_rng_state_all graph init initial_seed is_available is_bf16_supported is_initialized make_graphed_callables
        manual_seed manual_seed_all max_memory_allocated max_memory_cached max_memory_reserved mem_get_info
        memory_allocated memory_cached memory_reserved memory_stats memory_summary memory_usage random
        reset_accumulated_memory_stats reset_peak_memory_stats seed seed_all set_device set_rng_state set_rng_state_all
        set_stream stream synchronize utilization BFloat16Tensor ByteTensor DoubleTensor FloatTensor HalfTensor
        IntTensor LongTensor
        """.split()  # noqa: SIM905  # as words, these can be held against the source
    ),
    "sdaa": frozenset(
        """
        Event Stream _lazy_call current_device current_stream default_generators default_stream device device_count
        empty_cache get_device_name get_device_properties get_rng_state initial_seed is_available is_bf16_supported
        manual_seed manual_seed_all max_memory_allocated max_memory_cached max_memory_reserved mem_get_info
        memory_allocated memory_cached memory_reserved memory_stats reset_max_memory_allocated reset_max_memory_cached
        reset_peak_memory_stats set_device set_rng_state stream synchronize
        """.split()  # noqa: SIM905  # as words, these can be held against the source
    ),
}
TOTAL, FREE, ALLOCATED, PEAK, RESERVED = 1000, 600, 100, 300, 400


def real_names(name: str) -> frozenset[str]:
    """The names of the maker's real module: all of them for torch's own, else those recorded above, a part of all."""
    return NAMES[name] if name in NAMES else frozenset(dir(getattr(torch, name)))


class Recorded(types.ModuleType):
    """A module that offers what a test gave it, and nothing that the real one lacks."""

    def __init__(self, name: str, offers: dict[str, Any]) -> None:
        super().__init__(f"recorded_{name}")
        self._real = real_names(name)
        foreign = sorted(set(offers) - self._real)
        assert not foreign, f"the real torch.{name} has no {foreign}"
        true = None if name in NAMES else getattr(torch, name)
        for entry, value in offers.items():
            checked = inspect.isfunction(value) and inspect.isfunction(getattr(true, entry, None))
            setattr(self, entry, _checked(value, getattr(true, entry)) if checked else value)

    def __getattr__(self, entry: str) -> Any:
        assert entry not in self.__dict__.get("_real", ()), f"{self.__name__} must answer {entry}: the real one has it"
        raise AttributeError(f"{self.__name__} has no {entry}")


def _checked(stand_in: Any, true: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        inspect.signature(true).bind(*args, **kwargs)
        return stand_in(*args, **kwargs)

    return call


class Device:
    """What the stand-ins answer from: two devices, their memory, streams on the host, generators of the host's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.current = 0
        self.capturing = False
        self.ranges: list[str] = []
        self.calls: list[str] = []
        self.generators = [torch.Generator(), torch.Generator()]
        self.properties = SimpleNamespace(total_memory=TOTAL, has_fp16=True, has_fp64=False, uuid="1111-aaaa")
        self.capability = (9, 0)

    def offers(self) -> dict[str, Any]:
        """The names that nearly all makers share, with torch.cuda's arguments."""
        graph_class = type("Graph", (), {"replay": lambda graph: self.calls.append("replay")})
        return {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: 2,
            "current_device": lambda: self.current,
            "set_device": lambda device: setattr(self, "current", device),
            "device": self.scope,
            "synchronize": lambda device=None: self.calls.append(f"synchronize {device}"),
            "get_device_properties": lambda device=None: self.properties,
            "get_device_name": lambda device=None: f"Recorded{self.name.upper()}",
            "manual_seed": lambda seed: self.seed(self.generators[self.current], seed),
            "manual_seed_all": lambda seed: [self.seed(one, seed) for one in self.generators] and None,
            "initial_seed": lambda: self.generators[self.current].initial_seed(),
            "get_rng_state": lambda device="x": self.generators[self.index(device)].get_state(),
            "set_rng_state": lambda new_state, device="x": self.generators[self.index(device)].set_state(new_state),
            "default_generators": tuple(self.generators),
            "Stream": streams.HostStream,
            "Event": streams.HostEvent,
            "stream": streams.stream_scope,
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
            "reset_peak_memory_stats": lambda device=None: self.calls.append("reset_peak_memory_stats"),
            "mem_get_info": lambda device=None: (FREE, TOTAL),
            "is_bf16_supported": lambda: True,
            "_lazy_call": lambda callable, **kwargs: callable() and None,
            f"{self.name.upper()}Graph": graph_class,
            "graph": self.graph,
            "is_current_stream_capturing": lambda: self.capturing,
        }

    def seed(self, generator: torch.Generator, seed: int) -> None:
        generator.manual_seed(seed)

    def index(self, device: Any) -> int:
        return device if isinstance(device, int) else self.current

    @contextlib.contextmanager
    def scope(self, device: int) -> Any:
        before, self.current = self.current, device
        yield
        self.current = before

    @contextlib.contextmanager
    def graph(self, graph: Any, pool: Any = None, stream: Any = None) -> Any:
        self.capturing = True
        yield
        self.capturing = False

    def ranger(self) -> Any:
        """A module of ranges: NVTX's, CNPX's, BRTX's."""
        return SimpleNamespace(
            range_push=self.ranges.append, range_pop=lambda: self.ranges.pop() if self.ranges else -1
        )


def cuda(device: Device) -> dict[str, Any]:
    runtime = SimpleNamespace(
        cudaHostRegister=lambda address, size, flags: device.calls.append("register") or 0,
        cudaHostUnregister=lambda address: device.calls.append("unregister") or 0,
    )
    return {
        **device.offers(),
        "init": lambda: None,
        "nvtx": device.ranger(),
        "cudart": lambda: runtime,
        "check_error": lambda res: None,
        "get_device_capability": lambda device_index=None: device.capability,
    }


def xpu(device: Device) -> dict[str, Any]:
    return {name: value for name, value in device.offers().items() if name != "default_stream"}


def mps(device: Device) -> dict[str, Any]:
    class Event:
        """As torch.mps.Event: one queue, so no method takes a stream."""

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

    shared = device.offers()
    return {
        **{name: shared[name] for name in ("is_available", "manual_seed", "empty_cache", "get_rng_state")},
        "set_rng_state": shared["set_rng_state"],
        "device_count": lambda: 1,
        "Event": Event,
        "synchronize": lambda: device.calls.append("synchronize"),
        "_get_default_mps_generator": lambda: device.generators[0],
        "current_allocated_memory": lambda: ALLOCATED,
        "driver_allocated_memory": lambda: RESERVED,
        "recommended_max_memory": lambda: TOTAL,
    }


def npu(device: Device) -> dict[str, Any]:
    runtime = SimpleNamespace(
        npuHostRegister=lambda address, size, flags: device.calls.append(f"register {flags}") or 0,
        npuHostUnregister=lambda address: 0,
    )
    mstx = SimpleNamespace(
        range_start=lambda message, stream=None: device.ranges.append(message) or len(device.ranges),
        range_end=lambda number: device.ranges.pop(),
    )
    return {**device.offers(), "npurt": lambda: runtime, "mstx": mstx, "get_device_capability": lambda index=None: None}


def mlu(device: Device) -> dict[str, Any]:
    return {**device.offers(), "cnpx": device.ranger(), "get_device_capability": lambda index=None: (5, 0)}


def supa(device: Device) -> dict[str, Any]:
    runtime = SimpleNamespace(supaHostRegister=lambda address, size, flags: 0, supaHostUnregister=lambda address: 0)
    return {**device.offers(), "brtx": device.ranger(), "supart": lambda: runtime, "check_error": lambda res: None}


def sdaa(device: Device) -> dict[str, Any]:
    return {name: value for name, value in device.offers().items() if name in NAMES["sdaa"]}


def hpu(device: Device) -> dict[str, Any]:
    shared = device.offers()
    absent = {"_lazy_call", "empty_cache", "default_generators", "is_current_stream_capturing"}

    @contextlib.contextmanager
    def graph(hpu_graph: Any, stream: Any = None, dry_run: bool = False) -> Any:
        yield

    stats = {"Limit": TOTAL, "InUse": ALLOCATED, "MaxInUse": PEAK}
    generators = device.generators[:1]
    return {
        **{name: value for name, value in shared.items() if name not in absent},
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


MAKERS = {maker.__name__: maker for maker in (cuda, xpu, mps, npu, mlu, supa, sdaa, hpu)}
FILES = {
    "cuda": {"dev/nvidia0": "", "dev/nvidia1": ""},
    "xpu": {"dev/dri/renderD128": "", "sys/class/drm/renderD128/device/vendor": "0x8086\n"},
    "npu": {"dev/davinci0": ""},
    "hpu": {"dev/accel/accel_controlD3": ""},
    "mlu": {"dev/cambricon_dev0": ""},
    "sdaa": {"dev/tcaicard20": ""},
    "supa": {"dev/biren/card_0": ""},
}
"""What the makers' drivers put there, and what it holds."""


def accelerator_class(name: str) -> Any:
    module, _, attribute = select.BUILT_IN[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def write_files(root: Any, files: dict[str, str]) -> None:
    for path, text in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def install(name: str, monkeypatch: Any, root: Any) -> tuple[Any, Device]:
    """Make this machine one with the maker's device, package and driver; gives the accelerator and its `Device`."""
    made = accelerator_class(name)
    device = Device(name)
    module = Recorded(name, MAKERS[name](device))
    write_files(root, FILES.get(name, {}))
    monkeypatch.setattr(made, "root", str(root))
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    asked = torch.get_device_module
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module if kind == name else asked(kind))
    if name in NAMES:
        _import_as(made.package, module, monkeypatch)
    if name == "cuda":
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(nvidia, "driver_version", lambda: (13, 0))
    if name == "xpu":
        monkeypatch.setattr(torch.version, "xpu", "20260000")
    if name == "hpu":
        experimental = types.ModuleType("experimental")
        experimental._is_fp16_supported = lambda: True  # type: ignore[attr-defined]
        _import_as("habana_frameworks.torch.utils.experimental", experimental, monkeypatch)
    if name == "mps":
        monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(sysname="Darwin", machine="arm64"))
        for question in ("is_built", "is_available", "is_macos_or_newer"):
            monkeypatch.setattr(torch.backends.mps, question, lambda *version: True)
        monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M4", raising=False)
    _take_tensors(name, monkeypatch)
    return made(), device


def _import_as(dotted: str, module: Any, monkeypatch: Any) -> None:
    parts = dotted.split(".")
    for end in range(1, len(parts)):
        parent = ".".join(parts[:end])
        if parent not in sys.modules:
            monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    monkeypatch.setitem(sys.modules, dotted, module)


def _take_tensors(name: str, monkeypatch: Any) -> None:
    """Let tensors for the device live on `meta` and say that they are the device's; let the host's memory be pinned."""

    class OnDevice(torch.Tensor):
        device = property(lambda self: SimpleNamespace(type=name))  # type: ignore[assignment]

    make, empty = torch.tensor, torch.Tensor.new_empty
    pinned: list[int] = []

    def tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
        if device != name:
            return make(data, dtype=dtype, device=device)
        return make(data, dtype=dtype, device="meta").as_subclass(OnDevice)

    def pin(self: Any, device: Any = None) -> Any:
        assert device in (None, name)
        copy = self.clone()
        pinned.append(copy.data_ptr())
        return copy

    def new_empty(self: Any, size: Any, pin_memory: bool = False, **rest: Any) -> Any:
        return pin(empty(self, size, **rest)) if pin_memory else empty(self, size, **rest)

    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self, device=None: self.data_ptr() in pinned)
