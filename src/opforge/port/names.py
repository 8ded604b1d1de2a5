"""torch's vendor modules and the accelerator interface: which names correspond, and with which parameters."""

from __future__ import annotations

from typing import NamedTuple

from .vendors import VENDORS


class Rule(NamedTuple):
    """How `torch.<vendor>.<name>` becomes `get_accelerator().<method>`."""

    method: str
    parameters: tuple[tuple[str, str], ...] | None = ()
    """(torch's parameter, ours) in order, for those that ours has. None: a torch class, whose arguments stay as they
    are."""
    takes_device: bool = False
    """Whether the last parameter is a device: ours takes an index, torch's also a string or a torch.device."""
    uses_index: bool = False
    """Whether ours uses the index on every device, so that a torch.device in its place fails on some."""
    index_required: bool = False
    """Whether the index has no default."""
    call_only: bool = False
    """Whether only a call can be converted. The name alone is a torch class, and ours is not a class."""


_DEVICE = (("device", "device_index"),)


def _same(name: str, *parameters: str) -> Rule:
    return Rule(name, tuple((parameter, parameter) for parameter in parameters))


def _with_device(name: str) -> Rule:
    return Rule(name, _DEVICE, takes_device=True)


RULES = {
    "is_available": _same("is_available"),
    "device_count": _same("device_count"),
    "current_device": _same("current_device"),
    "set_device": Rule("set_device", _DEVICE, takes_device=True, uses_index=True, index_required=True),
    "device": Rule("device", _DEVICE, takes_device=True, uses_index=True, call_only=True),
    "synchronize": _with_device("synchronize"),
    "Stream": Rule("Stream", None),
    "Event": Rule("Event", None),
    "stream": _same("stream", "stream"),
    "current_stream": _with_device("current_stream"),
    "default_stream": _with_device("default_stream"),
    "graph": Rule(
        "capture_to_graph", (("cuda_graph", "graph"), ("pool", "pool"), ("stream", "stream")), call_only=True
    ),
    "is_current_stream_capturing": _same("is_current_stream_capturing"),
    "empty_cache": _same("empty_cache"),
    "memory_allocated": _with_device("memory_allocated"),
    "max_memory_allocated": _with_device("max_memory_allocated"),
    "reset_max_memory_allocated": _with_device("reset_max_memory_allocated"),
    "memory_cached": _with_device("memory_cached"),
    "max_memory_cached": _with_device("max_memory_cached"),
    "reset_max_memory_cached": _with_device("reset_max_memory_cached"),
    "memory_reserved": _with_device("memory_reserved"),
    "max_memory_reserved": _with_device("max_memory_reserved"),
    "memory_stats": _with_device("memory_stats"),
    "reset_peak_memory_stats": _with_device("reset_peak_memory_stats"),
    "mem_get_info": _with_device("mem_get_info"),
    "manual_seed": _same("manual_seed", "seed"),
    "manual_seed_all": _same("manual_seed_all", "seed"),
    "initial_seed": _same("initial_seed"),
    "get_rng_state": _with_device("get_rng_state"),
    "set_rng_state": Rule("set_rng_state", (("new_state", "new_state"), *_DEVICE), takes_device=True),
    "is_bf16_supported": _same("is_bf16_supported"),
    "nvtx.range_push": _same("range_push", "msg"),
    "nvtx.range_pop": _same("range_pop"),
    "_lazy_call": Rule("lazy_call", (("callable", "callback"),)),
}
"""By the name below `torch.<vendor>`. A name with another meaning in the interface is not in the table."""

VENDOR_QUERIES = frozenset({"is_available", "device_count", "is_bf16_supported"})
"""Functions of the table whose result code may use to distinguish vendors."""

GRAPH_CLASSES = tuple(f"{vendor.upper()}Graph" for vendor in VENDORS)
"""torch's graph classes; ours are created by `create_graph()`."""

TENSOR_TYPES = ("BFloat16Tensor", "ByteTensor", "DoubleTensor", "FloatTensor", "HalfTensor", "IntTensor", "LongTensor")
"""Functions that create tensors. Only a call with a list of values means the same in both: torch also takes sizes."""

SUBMODULES = ("memory", "random", "streams", "graphs", "amp.autocast_mode", "amp.grad_scaler")
"""Submodules whose names `torch.<vendor>` also offers directly, or, for amp, `torch.<vendor>.amp`."""

AMP = {
    "amp.autocast": ("autocast", "device_type", ("enabled", "dtype", "cache_enabled")),
    "amp.GradScaler": ("amp.GradScaler", "device", ()),
    "amp.custom_fwd": ("amp.custom_fwd", "device_type", ("fwd",)),
    "amp.custom_bwd": ("amp.custom_bwd", "device_type", ("bwd",)),
}
"""A vendor's mixed precision: torch's general name, its parameter for the device, and the old form's parameters in
order. The order is empty if the general form has the same one after the device."""

GENERAL_NAMES = {
    "torch.cuda.OutOfMemoryError": "OutOfMemoryError",
}
"""Names that torch offers for every device, as `torch.<name>`."""

MPS_NAMES = {"current_allocated_memory": "memory_allocated", "driver_allocated_memory": "memory_reserved"}
"""Functions without arguments that have these names in torch.mps only."""

OUTSIDE_FUNCTIONS = {"torch.backends.mps.is_available": "is_available"}
"""Functions outside `torch.<vendor>` that have a counterpart in the interface."""

VENDOR_PREFIXES = {
    "torch.backends.cuda": "cuda",
    "torch.backends.cudnn": "cuda",
    "torch.backends.miopen": "cuda",
    "torch.backends.mps": "mps",
    "torch.version.cuda": "cuda",
    "torch.version.hip": "cuda",
    "torch.version.xpu": "xpu",
}
"""Further torch names that belong to one vendor, with all names below them. None has a counterpart."""

ADVICE = {
    "get_device_name": "get_accelerator().capabilities().device_name names the current device",
    "get_device_capability": "use get_accelerator().capabilities() for the feature that the number means",
    "get_device_properties": "only .total_memory has a counterpart, total_memory(index)",
    "is_initialized": "an accelerator is initialized when it is first used",
    "init": "an accelerator is initialized when it is first used",
    "seed": "use manual_seed with a seed of your own",
    "seed_all": "use manual_seed_all with a seed of your own",
    "get_rng_state_all": "call get_rng_state(index) for each of device_count()",
    "set_rng_state_all": "call set_rng_state(state, index) for each of device_count()",
    "memory_summary": "memory_stats() has the figures",
    "set_stream": "enter stream(s) as a context",
    "random": "call the interface's own functions",
    "amp.autocast": "call torch.autocast(get_accelerator().device_name()) where it is used",
}
"""Advice about names without a counterpart, if there is an alternative."""


def short_name(qualified: str | None) -> tuple[str, str] | None:
    """Splits a name below `torch.<vendor>`, such as ("cuda", "synchronize"); None if it is no such name.

    The second part is the shortest name that torch offers: `torch.cuda.memory.empty_cache` becomes `empty_cache`.
    """
    head, _, rest = (qualified or "").partition(".")
    vendor, _, name = rest.partition(".")
    if head != "torch" or vendor not in VENDORS:
        return None
    for submodule in SUBMODULES:
        if name.startswith(f"{submodule}."):
            return vendor, ("amp." if submodule.startswith("amp.") else "") + name.removeprefix(f"{submodule}.")
    return vendor, name
