"""What every name of DeepSpeed's accelerator interface returns on each device: DeepSpeed's own, opforge's, and under
`opforge.compat.deepspeed`.

DeepSpeed's accelerators run over the same recorded modules as opforge's. The CPU's run on this machine, so of figures
that differ from run to run only the type is compared.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import itertools
import json
import pathlib
import re
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from support.devices import vendor_modules
from support.devices.fake_devices import RESERVED
from support.devices.recorded_modules import real_names

from opforge.compat.deepspeed.accelerator import make_adapter
from opforge.testing.accelerators.interface import MAKERS

NAMES = ("cuda", "npu", "xpu", "supa", "klxpu", "hpu", "mps", "mlu", "sdaa", "cpu")
ONE_DEVICE = {"hpu", "mps"}
CLASSES = ("Stream", "Event")
FIGURES = {
    "memory_allocated",
    "max_memory_allocated",
    "memory_cached",
    "max_memory_cached",
    "memory_reserved",
    "max_memory_reserved",
    "memory_stats",
    "total_memory",
    "available_memory",
    "get_rss",
    "reset_rss",
    "device_count",
    "initial_seed",
}
"""Names whose values on the CPU differ from machine to machine."""


class Device(str):
    """Stands for a `torch.device`: this torch does not know the types of all vendors."""

    __slots__ = ()


class Torch(types.ModuleType):
    """`torch` with other members. DeepSpeed's accelerators read the modules of devices as its attributes."""

    def __init__(self, **members: Any) -> None:
        super().__init__("torch")
        self.__dict__.update(members)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class TensorDevice(str):
    """The device of a tensor, as `on_accelerator` reads it."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """The device without its number."""
        return self.partition(":")[0]


def public_names(package: Any) -> list[str]:
    """Returns the names of DeepSpeed's interface: those of its abstract class, and those that one device alone has."""
    kinds = [package.DeepSpeedAccelerator, *(_class_of(package, name) for name in NAMES)]
    names = {name for kind in kinds for name in dir(kind) if name[0] != "_"}
    return sorted(names - {"class_dict", "apply_hpu_workarounds"})


CAPABILITIES = {"cuda 6.1": (6, 1), "cuda 7.5": (7, 5), "cuda 8.6": (8, 6)}
"""GPUs older than the recorded one, of compute capability 9.0: what is asked of it depends on that."""
OF_CAPABILITIES = ("is_bf16_supported", "is_fp16_supported", "is_triton_supported", "prefer_triton_grouped_mm")


def table() -> list[tuple[str, list[str], str, str, str]]:
    """Returns the rows: name, devices, what DeepSpeed returns there, what opforge does, what it does under compat."""
    import deepspeed.accelerator as package

    names = public_names(package)
    found: dict[str, dict[tuple[str, str, str], list[str]]] = {name: {} for name in names}
    for device in (*NAMES, *CAPABILITIES):
        of_device = OF_CAPABILITIES if device in CAPABILITIES else names
        columns = [dict(_values(device, of_device, package, kind)) for kind in ("deepspeed", "opforge", "compat")]
        for name in of_device:
            if any(column[name] != MISSING for column in columns):
                values = tuple(column[name] for column in columns)
                found[name].setdefault(values, []).append(device)  # type: ignore[arg-type]
    return [(name, devices, *values) for name in names for values, devices in found[name].items()]


MISSING = "is missing"


def _class_of(package: Any, name: str) -> Any:
    module = importlib.import_module(f"{package.__name__}.{name}_accelerator")
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
    return next(kind for kind in kinds if issubclass(kind, package.DeepSpeedAccelerator))


def _values(device: str, names: Sequence[str], package: Any, kind: str) -> Iterator[tuple[str, str]]:
    """Makes the accelerator, and yields each name with what it returns."""
    with accelerator(device.partition(" ")[0], package, kind, CAPABILITIES.get(device, (9, 0))) as made:
        for name in names:
            yield name, re.sub(f"'{made.device_name()}(?=[:'])", "'DEVICE", _value(made, device, name))


@contextlib.contextmanager
def accelerator(device: str, package: Any, kind: str, capability: tuple[int, int]) -> Iterator[Any]:
    """Makes DeepSpeed's accelerator for the device, opforge's, or opforge's under compat, over a recorded module."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.delenv("LOCAL_RANK", raising=False)
        patch.delenv("DS_ALLOW_DEPRECATED_FP16", raising=False)
        patch.setattr("deepspeed.ops.triton_ops.is_triton_available", lambda: True)
        deepspeeds = _class_of(package, device)
        members: dict[str, Any] = {
            "device": lambda kind, index=None: Device(kind if index is None else f"{kind}:{index}")
        }
        if device == "cpu":
            ours = vendor_modules.accelerator_class("cpu")()
            vars(ours)["_has_fp16"] = False  # on every machine
            members["ops"] = types.SimpleNamespace(
                mkldnn=types.SimpleNamespace(_is_mkldnn_fp16_supported=lambda: False)
            )
            patch.setattr(f"{package.__name__}.cpu_accelerator.torch", Torch(**members))
        else:
            ours, fake = vendor_modules.install(device, patch, pathlib.Path(folder))
            fake.capability = capability
            _add_what_deepspeed_reads(device, fake)
            attribute = "cuda" if device == "klxpu" else device
            members[attribute] = fake.module
            patch.setattr(f"{package.__name__}.{attribute}_accelerator.torch", Torch(**members), raising=False)
            if device == "hpu":
                core = types.ModuleType("core")
                core.hpu = fake.module  # type: ignore[attr-defined]
                patch.setitem(sys.modules, "habana_frameworks.torch.core", core)
        vars(ours).update(_triton_is_installed=True, _nvtx=None)
        theirs = deepspeeds()
        if kind == "deepspeed":
            yield theirs
        elif kind == "opforge":
            yield ours
        else:
            yield make_adapter(ours, theirs, package.DeepSpeedAccelerator, {})


def _add_what_deepspeed_reads(device: str, fake: Any) -> None:
    """Adds to the fake module what only DeepSpeed's accelerator reads, if the real module has it."""
    runtime = types.SimpleNamespace(
        cudaHostRegister=lambda address, size, flags: 0, cudaHostUnregister=lambda address: 0
    )
    reserved = vars(fake.module).get("memory_reserved", lambda index=None: RESERVED)
    names = {
        "memory_cached": reserved,
        "max_memory_cached": reserved,
        "reset_max_memory_allocated": lambda index=None: None,
        "reset_max_memory_cached": lambda index=None: None,
        "seed": lambda: None,
        "set_per_process_memory_fraction": lambda fraction: None,
        "nccl": types.SimpleNamespace(version=lambda: (2, 27, 3)),
        "cudart": lambda: runtime,
        "check_error": lambda code: None,
        "random": types.ModuleType(f"torch.{device}.random"),
        **{maker: functools.partial(torch.tensor, dtype=dtype, device=device) for maker, dtype in MAKERS.items()},
    }
    for name, value in names.items():
        if name in real_names(device) and name not in vars(fake.module):
            setattr(fake.module, name, value)
    if device == "hpu":
        vars(fake.module.random).update(
            manual_seed=lambda seed: None,
            manual_seed_all=lambda seed: None,
            initial_seed=fake.generators[0].initial_seed,
        )


def _value(made: Any, device: str, name: str) -> str:
    """Returns the value in words: the type, and what of the value is the same in each run."""
    if not hasattr(type(made), name):
        return MISSING
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            member = getattr(made, name)
            if name in MAKERS:
                tensor = member([1.0])
                assert tensor.dtype == MAKERS[name]
                return (
                    "makes tensors on DEVICE"
                    if tensor.device.type != "cpu" or device == "cpu"
                    else "makes tensors on the host"
                )
            if name in CLASSES:
                return "`None`" if member is None else "a class"
            if not callable(member):
                return _text(member)
            return _of_calls(member, made, device, name)
        except Exception as error:
            return f"raises `{type(error).__name__}`"


def _of_calls(member: Any, made: Any, device: str, name: str) -> str:
    arguments: dict[str, tuple[Any, ...]] = {
        "manual_seed": (1,),
        "manual_seed_all": (1,),
        "stream": (None,),
        "range_push": ("here",),
        "lazy_call": (lambda: 7,),
        "pin_memory": (torch.ones(2),),
        "is_pinned": (torch.ones(2),),
        "unpin_memory": (torch.ones(2),),
        "pin_empty": (2,),
        "pin_empty_like": (torch.ones(2),),
        "on_accelerator": (types.SimpleNamespace(device=TensorDevice(f"{made.device_name()}:1")),),
        "create_op_builder": ("NoSuchBuilder",),
        "get_op_builder": ("NoSuchBuilder",),
        "set_visible_devices_envs": ({}, [0]),
        "set_compile_backend": ("inductor" if device != "hpu" else "eager",),
        "set_per_process_memory_fraction": (0.5,),
    }
    if name == "set_rng_state":
        return _text(member(made.get_rng_state()))
    if name in ("register_host_memory", "unregister_host_memory"):
        return _text(member(*((4096, 4096) if name[0] == "r" else (4096,))))
    if name == "capture_to_graph":
        return _text(member(made.create_graph()))
    if name == "replay_graph":
        graph = made.create_graph()
        with made.capture_to_graph(graph):
            pass
        return _text(member(graph))
    options = {"dtype": torch.float32} if name == "pin_empty" else {}
    takes_device = "device_index" in inspect.signature(member).parameters
    given = (0 if device in ONE_DEVICE else 1,) if takes_device else arguments.get(name, ())
    return _text(member(*given, **options), is_figure=device == "cpu" and name in FIGURES)


def _text(value: Any, is_figure: bool = False) -> str:
    """Returns a value in words. Of a figure that differs from machine to machine it is the type."""
    if isinstance(value, dict):
        return f"a dict of {len(value)} counters"
    if is_figure:
        return f"an {type(value).__name__}"
    if isinstance(value, (Device, torch.device)):
        return f"`torch.device('{value}')`"
    if isinstance(value, str) and ("op_builder" in value or "builders" in value):
        return "a package of builders"
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.dtype):
        return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in value))
    if value is None or isinstance(value, (bool, int, str, list, tuple)):
        return f"`{value!r}`"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if isinstance(value, types.ModuleType):
        return f"the module `{value.__name__}`"
    if isinstance(value, type):
        return f"the class `{value.__name__}`"
    kind = type(value).__name__
    if "Stream" in kind or "Graph" in kind:
        return "a stream" if "Stream" in kind else "a graph"
    if hasattr(value, "__enter__"):
        return "a context manager"
    return {"Generator": "a generator", "NotImplementedBuilder": "a builder that cannot load"}[kind]


def page() -> str:
    """Returns the table of docs/deepspeed-interface.md, which has all names."""
    groups: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name, rows in itertools.groupby(table(), key=lambda row: row[0]):
        groups.setdefault(tuple(_cells(*row[1:]) for row in rows), []).append(f"`{name}`")
    lines = ["| name | devices | DeepSpeed | opforge | under `opforge.compat.deepspeed` |", "| -- " * 5 + "|"]
    for rows, names in groups.items():
        for number, row in enumerate(rows):
            lines.append(f"| {', '.join(names) if number == 0 else ''} | {' | '.join(row)} |")
    return "\n".join(lines)


def _cells(devices: list[str], deepspeeds: str, ours: str, compat: str) -> tuple[str, ...]:
    where = "all" if {*NAMES} <= {*devices} else ", ".join(f"`{device}`" for device in devices)
    others = ["the same" if text == deepspeeds else text for text in (ours, compat)]
    return where, deepspeeds, others[0], "as opforge" if compat == ours != deepspeeds else others[1]


def differences() -> list[str]:
    """Returns the names that return something else, or are missing, in opforge's interface on some device."""
    return sorted({name for name, _, deepspeeds, ours, _ in table() if ours != deepspeeds})


def main() -> None:
    """Prints the page's table, and last the names that differ, as JSON."""
    print(json.dumps({"page": page(), "differences": differences()}))


if __name__ == "__main__":
    print(page())
