"""Which names of torch's vendor modules the accelerator interface has, under which name, and with which arguments."""

from __future__ import annotations

from typing import NamedTuple

from .vendors import VENDORS


class Rule(NamedTuple):
    """How `torch.<vendor>.<name>` becomes `get_accelerator().<method>`."""

    method: str
    takes: tuple[tuple[str, str], ...] | None = ()
    """(torch's parameter, ours) in order: what carries over. None: a class of torch's own, whose arguments stay."""
    numbers: bool = False
    """Whether the last of them is a device: ours is a number, where torch takes strings and torch.device too."""
    strict: bool = False
    """Whether ours heeds the number on every device, so that a torch.device in its place will not do everywhere."""
    required: bool = False
    """Whether the number has no default."""
    called: bool = False
    """Whether only a call can be converted, since the name itself is a class of torch's that ours is not."""


_DEVICE = (("device", "device_index"),)


def _same(name: str, *takes: str) -> Rule:
    return Rule(name, tuple((one, one) for one in takes))


def _numbered(name: str) -> Rule:
    return Rule(name, _DEVICE, numbers=True)


RULES = {
    "is_available": _same("is_available"),
    "device_count": _same("device_count"),
    "current_device": _same("current_device"),
    "set_device": Rule("set_device", _DEVICE, numbers=True, strict=True, required=True),
    "device": Rule("device", _DEVICE, numbers=True, strict=True, called=True),
    "synchronize": _numbered("synchronize"),
    "Stream": Rule("Stream", None),
    "Event": Rule("Event", None),
    "stream": _same("stream", "stream"),
    "current_stream": _numbered("current_stream"),
    "default_stream": _numbered("default_stream"),
    "graph": Rule("capture_to_graph", (("cuda_graph", "graph"), ("pool", "pool"), ("stream", "stream")), called=True),
    "is_current_stream_capturing": _same("is_current_stream_capturing"),
    "empty_cache": _same("empty_cache"),
    "memory_allocated": _numbered("memory_allocated"),
    "max_memory_allocated": _numbered("max_memory_allocated"),
    "reset_max_memory_allocated": _numbered("reset_max_memory_allocated"),
    "memory_cached": _numbered("memory_cached"),
    "max_memory_cached": _numbered("max_memory_cached"),
    "reset_max_memory_cached": _numbered("reset_max_memory_cached"),
    "memory_reserved": _numbered("memory_reserved"),
    "max_memory_reserved": _numbered("max_memory_reserved"),
    "memory_stats": _numbered("memory_stats"),
    "reset_peak_memory_stats": _numbered("reset_peak_memory_stats"),
    "mem_get_info": _numbered("mem_get_info"),
    "manual_seed": _same("manual_seed", "seed"),
    "manual_seed_all": _same("manual_seed_all", "seed"),
    "initial_seed": _same("initial_seed"),
    "get_rng_state": _numbered("get_rng_state"),
    "set_rng_state": Rule("set_rng_state", (("new_state", "new_state"), *_DEVICE), numbers=True),
    "is_bf16_supported": _same("is_bf16_supported"),
    "nvtx.range_push": _same("range_push", "msg"),
    "nvtx.range_pop": _same("range_pop"),
    "_lazy_call": Rule("lazy_call", (("callable", "callback"),)),
}
"""By the name below `torch.<vendor>`. What means something else there and here is not in the table."""

QUESTIONS = frozenset({"is_available", "device_count", "is_bf16_supported"})
"""Functions of the table whose answer may be what code tells vendors apart by."""

GRAPH_CLASSES = tuple(f"{vendor.upper()}Graph" for vendor in VENDORS)
"""torch's graph classes; made by `create_graph()`."""

TENSOR_TYPES = ("BFloat16Tensor", "ByteTensor", "DoubleTensor", "FloatTensor", "HalfTensor", "IntTensor", "LongTensor")
"""Makers of tensors. Only a list of values means the same here and there: torch also takes sizes."""

SUBMODULES = ("memory", "random", "streams", "graphs", "amp.autocast_mode", "amp.grad_scaler")
"""Where torch's modules define what they also offer, or, for amp, what `amp` offers."""

AMP = {
    "amp.autocast": ("autocast", "device_type", ("enabled", "dtype", "cache_enabled")),
    "amp.GradScaler": ("amp.GradScaler", "device", ()),
    "amp.custom_fwd": ("amp.custom_fwd", "device_type", ("fwd",)),
    "amp.custom_bwd": ("amp.custom_bwd", "device_type", ("bwd",)),
}
"""Vendor's own mixed precision: torch's general form, its parameter for the device, and the old form's order of
arguments where it differs from the general one's after the device."""

ELSEWHERE = {
    "torch.cuda.OutOfMemoryError": "OutOfMemoryError",
}
"""Names that torch itself offers for every device: `torch.<that>`."""

MPS = {"current_allocated_memory": "memory_allocated", "driver_allocated_memory": "memory_reserved"}
"""What torch.mps alone calls so; without arguments."""

CHECKS = {"torch.backends.mps.is_available": "is_available"}
"""Functions outside the vendor's module that are the interface's."""

OTHERS = {
    "torch.backends.cuda": "cuda",
    "torch.backends.cudnn": "cuda",
    "torch.backends.miopen": "cuda",
    "torch.backends.mps": "mps",
    "torch.version.cuda": "cuda",
    "torch.version.hip": "cuda",
    "torch.version.xpu": "xpu",
}
"""Further names of torch that are about one vendor, with all below them. None has a counterpart."""

ADVICE = {
    "get_device_name": "get_accelerator().capabilities().device_name names the current device",
    "get_device_capability": "ask get_accelerator().capabilities() for what the number stands for",
    "get_device_properties": "only .total_memory has a counterpart, total_memory(index)",
    "is_initialized": "an accelerator sets itself up when it is first used",
    "init": "an accelerator sets itself up when it is first used",
    "seed": "use manual_seed with a number of your own",
    "seed_all": "use manual_seed_all with a number of your own",
    "get_rng_state_all": "call get_rng_state(index) for each of device_count()",
    "set_rng_state_all": "call set_rng_state(state, index) for each of device_count()",
    "memory_summary": "memory_stats() has the figures",
    "set_stream": "enter stream(s) as a context",
    "random": "call the interface's own functions",
    "amp.autocast": "call torch.autocast(get_accelerator().device_name()) where it is used",
}
"""What to do about names that are reported, where there is more to say than that they have no counterpart."""


def short_name(qualified: str | None) -> tuple[str, str] | None:
    """Split a name of torch's vendor module: ("cuda", "synchronize"); None where it is none of theirs.

    The name is the shortest that torch offers it under: `torch.cuda.memory.empty_cache` is `empty_cache`.
    """
    head, _, rest = (qualified or "").partition(".")
    vendor, _, name = rest.partition(".")
    if head != "torch" or vendor not in VENDORS:
        return None
    for submodule in SUBMODULES:
        if name.startswith(f"{submodule}."):
            return vendor, ("amp." if submodule.startswith("amp.") else "") + name.removeprefix(f"{submodule}.")
    return vendor, name
