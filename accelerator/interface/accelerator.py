"""The accelerator interface: one class, composed of one base class for each subject.

Names and arguments are those of DeepSpeed's accelerator interface, so that code moves over by changing an import.
A new accelerator subclasses `Accelerator`, sets four class attributes, and overrides the methods for which its device
differs from what `torch.get_device_module` offers. `devices/null.py` is the smallest complete one.
"""

from __future__ import annotations

import importlib
import os
import sys
from operator import index as whole_number
from typing import TYPE_CHECKING, cast

from opforge import errors
from opforge.foundation.lazy import cached_property

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType
    from typing import Any, ClassVar, SupportsIndex

    import torch
    from torch.types import Device

    from opforge.accelerator.amp import DeviceAmp
    from opforge.accelerator.capabilities import Capabilities
    from opforge.accelerator.target import Target

    from .builder_protocol import Builder, BuilderClass
    from .external_builders import ExternalBuilders


class Devices:
    """The device part of the interface, over `torch.get_device_module(torch_device)`.

    `device_index` is a number from 0, also as text (`LOCAL_RANK`), or a `torch.device` or its name (`cuda:1`). None and
    a `torch.device` without a number mean the current device. SettingError is raised if there is no such device.

    Values that cannot change while the process runs are looked up once and kept in the object: programs call some of
    these methods in every step.
    """

    name: ClassVar[str]
    """The accelerator's name, as in the registry and in OPFORGE_ACCELERATOR."""
    torch_device: ClassVar[str]
    """The type of `torch.device` that its tensors live on."""
    synchronous: ClassVar[bool] = False
    """Whether work is finished when the call that started it returns."""
    index_is_rank: ClassVar[bool] = False
    """Whether a device's number only tells processes on a machine apart, so that every number from 0 is accepted."""
    root: str = "/"
    """The folder that holds /dev, /proc and /sys; tests replace it."""

    def __init__(self) -> None:
        self._target: Target | None = None
        self._capabilities: Capabilities | None = None
        self._indices: dict[Device, int | None] = {}

    @cached_property
    def _torch(self) -> ModuleType:
        """The module `torch`: an attribute costs less than an import in every call, and a hit imports no torch."""
        import torch

        return torch

    def _device_module(self) -> Any:
        """Returns torch's module for the device, such as `torch.cuda`."""
        return self._torch.get_device_module(self.torch_device)

    def _device_function(self, *names: str) -> Callable[..., Any] | None:
        """Returns the first of these functions that torch's module for the device has, because modules differ.

        None if it has none of them.
        """
        module = self._device_module()
        for name in names:
            function: Callable[..., Any] | None = getattr(module, name, None)
            if function is not None:
                return function
        return None

    def _number(self, device_index: Device) -> int | None:
        """Returns a device's number, whether or not it exists. None stands for the current device.

        Opens no device. Raises SettingError for a negative number and for another kind of device.
        """
        if device_index is None:
            return None
        number: int | None
        device_type = self.torch_device
        try:
            if isinstance(device_index, int) or (isinstance(device_index, str) and device_index.isdecimal()):
                number = int(device_index)
            elif isinstance(device_index, str):
                device_type, colon, digits = device_index.partition(":")
                number = int(digits) if colon else None
            elif isinstance(device_index, self._torch.device):
                device_type, number = device_index.type, device_index.index
            else:
                number = whole_number(cast("SupportsIndex", device_index))
        except (TypeError, ValueError):
            raise self._not_a_device(device_index) from None
        if device_type != self.torch_device or (number is not None and number < 0):
            raise self._not_a_device(device_index)
        return number

    def _torch_accelerator(self) -> Any:
        """Returns `torch.accelerator` if the device is the one that it is for, and is there; else None.

        A torch that was built for a device is for that one on every machine; its functions raise where there is none.
        """
        accelerator = getattr(self._torch, "accelerator", None)
        current = accelerator and accelerator.current_accelerator(check_available=True)
        return accelerator if current is not None and current.type == self.torch_device else None

    def _torch_accelerator_function(self, name: str) -> Callable[..., Any] | None:
        """Returns a function or class of `torch.accelerator` that serves the device; None if there is none."""
        function: Callable[..., Any] | None = getattr(self._torch_accelerator(), name, None)
        return function

    def index_of(self, device_index: Device) -> int | None:
        """Returns the number of an existing device, for methods that take one. None stands for the current device.

        Raises SettingError if there is no such device.
        """
        if device_index is None:
            return None
        try:
            return self._indices[device_index]
        except (KeyError, TypeError):  # TypeError: a list, for example
            number = self._number(device_index)
        if not (number is None or self.index_is_rank):
            count = self.device_count()
            if number >= count:
                raise self._not_a_device(
                    device_index, f"a number below {count}, the number of {self.name} devices here"
                )
        self._indices[device_index] = number
        return number

    def _not_a_device(self, device_index: object, expected: str = "") -> errors.SettingError:
        expected = expected or f"a number from 0 on, or a torch.device of type {self.torch_device!r}"
        return errors.SettingError("device_index", device_index, expected)

    def is_synchronized_device(self) -> bool:
        """Returns whether work is finished when the call that started it returns, so that nothing needs waiting for."""
        return self.synchronous

    def use_host_timers(self) -> bool:
        """Returns whether the host's clock measures the device's work correctly."""
        return self.is_synchronized_device()

    def resolves_data_dependency(self) -> bool:
        """Returns whether an operation sees the results of earlier ones without synchronisation."""
        return self.is_synchronized_device()

    def handles_memory_backpressure(self) -> bool:
        """Returns whether freed memory can be reused immediately, without waiting for the device."""
        return self.is_synchronized_device()

    def is_available(self) -> bool:
        """Returns whether this process can use the device now."""
        return bool(self._device_module().is_available())

    def unavailable_reason(self) -> str:
        """Returns why `is_available` is False, in words. Called only in that case."""
        return f"torch.{self.torch_device}.is_available() is False"

    def device_name(self, device_index: Device = None) -> str:
        """Returns the string that `torch.device` takes, with the device's number unless it is None.

        Whether the device exists is not checked, because that could open it.
        """
        number = self._number(device_index)
        return self.torch_device if number is None else f"{self.torch_device}:{number}"

    def device(self, device_index: Device = None) -> AbstractContextManager[Any]:
        """Returns a context manager in which the device is the current one."""
        index, device_class = self.index_of(device_index), self._device_function("device")
        if device_class is None:
            from contextlib import nullcontext

            return nullcontext()
        if index is None:
            index = self.current_device()
        context: AbstractContextManager[Any] = device_class(index)
        return context

    def set_device(self, device_index: Device) -> None:
        """Makes the device the current one. Raises SettingError if it does not exist.

        A device without a number is also an error, unless `index_is_rank`: then it changes nothing.
        """
        if (index := self.index_of(device_index)) is not None:
            self._device_module().set_device(index)
        elif not self.index_is_rank:
            raise self._not_a_device(device_index, "a device with its number")

    def current_device(self) -> int:
        """Returns the current device's number."""
        return int(self._device_module().current_device())

    def current_device_name(self) -> str:
        """Returns the current device as `torch.device` takes it."""
        return self.device_name(self.current_device())

    def device_count(self) -> int:
        """Returns the number of devices that this process may use."""
        return int(self._device_module().device_count())

    def multiprocessor_count(self, device_index: Device = None) -> int:
        """Returns the number of multiprocessors (AMD: compute units) of the device; 1 if torch does not report it."""
        index, properties = self.index_of(device_index), self._device_function("get_device_properties")
        return 1 if properties is None else int(getattr(properties(index), "multi_processor_count", 1))

    def device_arch(self, device_index: Device = None) -> str:
        """Returns the architecture of the device as targets name it; empty if those here differ and it is unknown."""
        self.index_of(device_index)  # raises SettingError for a device that does not exist
        arch = self.target().arch
        return arch[0] if len(arch) == 1 else ""

    def synchronize(self, device_index: Device = None, *, device: Device = None) -> None:
        """Waits until the device has finished all its work. Returns immediately if the device is synchronous.

        `device` is torch's word for `device_index`.
        """
        if not self.is_synchronized_device():
            self._device_module().synchronize(self.index_of(device_index if device is None else device))

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Returns whether the tensor lives on this kind of device."""
        return tensor.device.type == self.torch_device

    def target(self) -> Target:
        """Returns the target of builds for this machine's devices; the first call probes them."""
        if self._target is None:
            self._target = self._find_target()
        return self._target

    def _find_target(self) -> Target:
        from opforge.accelerator.target import Target

        return Target(self.name)


class RandomNumbers(Devices):
    """The random-number part of the interface."""

    def random(self) -> ModuleType:
        """Returns the module `torch.random`."""
        random: ModuleType = self._torch.random
        return random

    def set_rng_state(self, new_state: torch.Tensor, device_index: Device = None) -> None:
        """Sets the generator's state to one that `get_rng_state` returned."""
        module, index = self._device_module(), self.index_of(device_index)
        if index is None:
            module.set_rng_state(new_state)
        else:
            module.set_rng_state(new_state, index)

    def get_rng_state(self, device_index: Device = None) -> torch.Tensor:
        """Returns the generator's state: a one-dimensional uint8 tensor in host memory."""
        module, index = self._device_module(), self.index_of(device_index)
        state: torch.Tensor = module.get_rng_state() if index is None else module.get_rng_state(index)
        return state

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Returns the state of each device's generator, as `get_rng_state` does."""
        return [self.get_rng_state(index) for index in range(self.device_count())]

    def set_rng_state_all(self, new_states: Iterable[torch.Tensor]) -> None:
        """Sets the state of each device's generator, to the result of `get_rng_state_all`."""
        for index, state in enumerate(new_states):
            self.set_rng_state(state, index)

    def manual_seed(self, seed: int) -> torch.Generator | None:
        """Seeds the current device's generator, and returns what torch's own function for the device returns."""
        generator: torch.Generator | None = self._device_module().manual_seed(seed)
        return generator

    def manual_seed_all(self, seed: int) -> torch.Generator | None:
        """Seeds the generators of all devices, and returns what torch's own function for the device returns."""
        generator: torch.Generator | None = self._device_module().manual_seed_all(seed)
        return generator

    def initial_seed(self, device_index: Device = None) -> int:
        """Returns the seed of the device's generator."""
        index = self.index_of(device_index)
        seeded = self._device_module() if index is None else self.default_generator(index)
        return int(seeded.initial_seed())

    def default_generator(self, device_index: Device = None) -> torch.Generator:
        """Returns the device's default generator."""
        index = self.index_of(device_index)
        if index is None:
            index = self.current_device()
        generator: torch.Generator = self._device_module().default_generators[index]
        return generator


class OneGenerator(RandomNumbers):
    """The random-number part for a device with a single generator, its `default_generator`, for every number."""

    def set_rng_state(self, new_state: torch.Tensor, device_index: Device = None) -> None:
        """Sets the generator's state to one that `get_rng_state` returned."""
        self.default_generator(device_index).set_state(new_state)

    def get_rng_state(self, device_index: Device = None) -> torch.Tensor:
        """Returns the generator's state: a one-dimensional uint8 tensor in host memory."""
        return self.default_generator(device_index).get_state()

    def manual_seed_all(self, seed: int) -> torch.Generator | None:
        """Seeds the generator, and returns what `manual_seed` returns."""
        return self.manual_seed(seed)

    def initial_seed(self, device_index: Device = None) -> int:
        """Returns the generator's seed."""
        return int(self.default_generator(device_index).initial_seed())


class Streams(Devices):
    """The stream and event part of the interface."""

    def _has_streams(self) -> bool:
        return not self.is_synchronized_device() and hasattr(self._device_module(), "Stream")

    @cached_property
    def _streams(self) -> Any:
        """Torch's module for the device if it has streams, else the emulation, which has the same names."""
        if self._has_streams():
            return self._device_module()
        from opforge.accelerator.fallback import streams

        return streams

    @cached_property
    def Stream(self) -> type[Any]:
        """The class of a stream, called as `Stream(device=None, priority=0)`.

        Its objects have synchronize, query, wait_stream, wait_event and record_event.
        """
        stream_class: type[Any] = self._streams.Stream
        return stream_class

    @cached_property
    def Event(self) -> type[Any]:
        """The class of an event, called as `Event(enable_timing=False)`.

        Its objects have record, wait, query, synchronize, and elapsed_time(end), in milliseconds.
        """
        event_class: type[Any] = self._streams.Event
        return event_class

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Returns a context manager in which the stream is the current one; None changes nothing."""
        context: AbstractContextManager[Any] = self._streams.stream(stream)
        return context

    @cached_property
    def _set_scope(self) -> threading.local:
        """The scope of the stream that a thread has set, where torch has scopes alone."""
        import threading

        return threading.local()

    def set_stream(self, stream: Any) -> None:
        """Makes the stream the current one, and its device the current device, until another is set or a scope ends.

        None changes nothing.
        """
        function = getattr(self._streams, "set_stream", None) or self._torch_accelerator_function("set_stream")
        if stream is None:
            return
        if function is None:
            # A scope that nobody holds is left when it is collected.
            former, self._set_scope.entered = getattr(self._set_scope, "entered", None), None
            if former is not None:
                former.__exit__(None, None, None)
            scope = self.stream(stream)
            scope.__enter__()
            self._set_scope.entered = scope
        else:
            function(stream)

    def current_stream(self, device_index: Device = None) -> Any:
        """Returns the stream that new work is queued on."""
        index = None if device_index is None else self.index_of(device_index)
        return self._streams.current_stream(index)

    def default_stream(self, device_index: Device = None) -> Any:
        """Returns the stream that is current if no other was chosen."""
        streams = self._streams
        # torch.xpu has no default_stream: outside every scope the current stream is the default one.
        return getattr(streams, "default_stream", streams.current_stream)(self.index_of(device_index))

    def raw_stream_function(self) -> Callable[[int], int]:
        """Returns a function from a device's number to the driver's handle of the stream that is current there.

        Kernel launchers keep the function and call it at every launch, so it is torch's own C function. On a device
        without streams it returns 0. Raises NotImplementedError if torch has no such function for the device.
        """
        if not self._has_streams():
            return lambda device_index: 0
        import torch

        function: Callable[[int], int] | None = getattr(torch._C, f"_{self.torch_device}_getCurrentRawStream", None)
        if function is None:
            raise NotImplementedError(f"{self.name}: torch has no function for the handle of the current stream")
        return function


class Graphs(Devices):
    """The graph part of the interface."""

    def _captures_graphs(self) -> bool:
        """Returns whether the device captures graphs. If not, they are emulated."""
        if self.is_synchronized_device():
            return False
        module = self._device_module()
        return hasattr(module, self._graph_name()) and hasattr(module, "graph")

    def _graph_name(self) -> str:
        return f"{self.torch_device.upper()}Graph"

    @cached_property
    def _graphs(self) -> Any:
        """Torch's module for the device, `torch.accelerator`, or the emulation: the first that captures graphs."""
        if self._captures_graphs():
            return self._device_module()
        from opforge.accelerator.fallback import graph, torch_graph

        graph_class = self._torch_accelerator_function("Graph")
        return graph if graph_class is None else torch_graph.of(graph_class) or graph

    @cached_property
    def _graph_class(self) -> type[Any]:
        graph_class: type[Any] = getattr(self._graphs, self._graph_name() if self._captures_graphs() else "Graph")
        return graph_class

    def is_current_stream_capturing(self) -> bool:
        """Returns whether new work is captured into a graph."""
        return bool(self._graphs.is_current_stream_capturing())

    def create_graph(self) -> Any:
        """Returns an empty graph, to be filled by `capture_to_graph`."""
        return self._graph_class()

    def capture_to_graph(
        self, graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str | None = None
    ) -> AbstractContextManager[Any]:
        """Returns a context manager that captures the work of its body into the graph.

        A device captures the body without running it. The emulation for a device without graphs also runs it, so that
        its results exist immediately, and ignores the other arguments.

        Args:
            graph: The graph that `create_graph` returned.
            pool: The memory that it shares with other graphs, from `graph_pool_handle`; None for its own.
            stream: The stream that is captured; None for one of torch's choice.
            capture_error_mode: Which calls are errors while a capture runs, where torch lets callers choose: "global",
                "thread_local" or "relaxed". None is torch's default.
        """
        mode = {} if capture_error_mode is None else {"capture_error_mode": capture_error_mode}
        context: AbstractContextManager[Any] = self._graphs.graph(graph, pool=pool, stream=stream, **mode)
        return context

    def graph_pool_handle(self) -> Any:
        """Returns a new name of memory that graphs share, for `capture_to_graph`. None if graphs share none."""
        function = getattr(self._graphs, "graph_pool_handle", None)
        return None if function is None else function()

    def replay_graph(self, graph: Any) -> None:
        """Runs the captured work again on the same tensors: it reads the inputs anew and overwrites the outputs.

        Raises RuntimeError if nothing was captured.
        """
        graph.replay()


class Memory(Devices):
    """The memory part of the interface. `cached` and `reserved` are two names for the same, as in older torch.

    A figure that a device does not count is 0, and resetting it does nothing.
    """

    def _bytes(self, device_index: Device, *names: str) -> int:
        index, function = self.index_of(device_index), self._device_function(*names)
        return 0 if function is None else int(function(index))

    def _reset(self, device_index: Device, *names: str) -> None:
        index, function = self.index_of(device_index), self._device_function(*names)
        if function is not None:
            function(index)

    def empty_cache(self) -> None:
        """Releases memory that torch holds but does not use."""
        if (function := self._device_function("empty_cache")) is not None:
            function()

    def empty_host_cache(self) -> None:
        """Releases page-locked memory of the host that torch holds but does not use, if torch has a function for it."""
        if (function := self._torch_accelerator_function("empty_host_cache")) is not None:
            function()

    def memory_allocated(self, device_index: Device = None) -> int:
        """Returns the bytes that tensors occupy now."""
        return self._bytes(device_index, "memory_allocated")

    def max_memory_allocated(self, device_index: Device = None) -> int:
        """Returns the most bytes that tensors occupied since the start or the last reset."""
        return self._bytes(device_index, "max_memory_allocated")

    def reset_max_memory_allocated(self, device_index: Device = None) -> None:
        """Resets the peak of `max_memory_allocated` to the memory that is allocated now."""
        self._reset(device_index, "reset_peak_memory_stats", "reset_max_memory_allocated")

    def memory_cached(self, device_index: Device = None) -> int:
        """Returns the same as `memory_reserved`, under its older name."""
        return self.memory_reserved(device_index)

    def max_memory_cached(self, device_index: Device = None) -> int:
        """Returns the same as `max_memory_reserved`, under its older name."""
        return self.max_memory_reserved(device_index)

    def reset_max_memory_cached(self, device_index: Device = None) -> None:
        """Resets the peak of `max_memory_reserved` to the memory that is reserved now."""
        self._reset(device_index, "reset_peak_memory_stats", "reset_max_memory_cached")

    def memory_stats(self, device_index: Device = None) -> dict[str, Any]:
        """Returns the allocator's counters by torch's names, such as `allocated_bytes.all.current`."""
        if (stats := self._device_function("memory_stats")) is not None:
            return dict(stats(self.index_of(device_index)))
        return {
            "allocated_bytes.all.current": self.memory_allocated(device_index),
            "allocated_bytes.all.peak": self.max_memory_allocated(device_index),
            "reserved_bytes.all.current": self.memory_reserved(device_index),
            "reserved_bytes.all.peak": self.max_memory_reserved(device_index),
        }

    def reset_peak_memory_stats(self, device_index: Device = None) -> None:
        """Resets every peak to its current value."""
        self._reset(device_index, "reset_peak_memory_stats")

    def reset_accumulated_memory_stats(self, device_index: Device = None) -> None:
        """Resets the counters of `memory_stats` that add up allocated and freed memory."""
        self._reset(device_index, "reset_accumulated_memory_stats")

    def memory_reserved(self, device_index: Device = None) -> int:
        """Returns the device's bytes that torch holds now, used or not."""
        return self._bytes(device_index, "memory_reserved", "memory_allocated")

    def max_memory_reserved(self, device_index: Device = None) -> int:
        """Returns the most bytes that torch held since the start or the last reset."""
        return self._bytes(device_index, "max_memory_reserved", "max_memory_allocated")

    def total_memory(self, device_index: Device = None) -> int:
        """Returns the bytes that the device has."""
        index = self.index_of(device_index)
        if index is None:
            index = self.current_device()
        return int(self._device_module().get_device_properties(index).total_memory)

    def available_memory(self, device_index: Device = None) -> int:
        """Returns the bytes that can still be allocated.

        The memory of other processes is subtracted if the device reports it.
        """
        return self.mem_get_info(device_index)[0]

    def mem_get_info(self, device_index: Device = None) -> tuple[int, int]:
        """Returns (free, total) bytes of the device."""
        function = self._device_function("mem_get_info")
        if function is None:
            total = self.total_memory(device_index)
            return total - self.memory_reserved(device_index), total
        free, total = function(self.index_of(device_index))
        return int(free), int(total)


class Pinning(Devices):
    """The pinning part of the interface, over torch's own: host memory from which a device copies directly."""

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return tensor.new_empty(tuple(shape), pin_memory=True)

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def pin_memory(self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        """Returns a page-locked tensor of the same size and dtype.

        With `make_copy` it holds the tensor's values. Without, its contents are undefined, and it has the tensor's
        shape if `match_shape` is true, else one dimension.
        """
        if make_copy:
            return self._torch_pin_memory(tensor)
        return self._torch_empty_pinned(tensor, tensor.shape if match_shape else (tensor.numel(),))

    def pin_empty(
        self, *size: int | Sequence[int], dtype: torch.dtype, device: str | torch.device = "cpu"
    ) -> torch.Tensor:
        """Returns a page-locked tensor of this shape (numbers, or one sequence of them); its contents are undefined.

        Raises SettingError if `device` is not the host.
        """
        import torch

        _require_host(device)
        first = size[0] if len(size) == 1 else None
        shape = tuple(size if first is None or isinstance(first, int) else first)
        return self._torch_empty_pinned(torch.empty(0, dtype=dtype, device="cpu"), [int(length) for length in shape])  # type: ignore[arg-type]

    def pin_empty_like(
        self, tensor: torch.Tensor, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Returns a page-locked tensor of the tensor's shape, and of its dtype if `dtype` is None.

        Its contents are undefined. Raises SettingError if `device` is not the host.
        """
        return self.pin_empty(tensor.shape, dtype=tensor.dtype if dtype is None else dtype, device=device)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Returns whether the tensor's memory is page-locked."""
        return bool(self._torch_is_pinned(tensor))

    def unpin_memory(self, tensor: torch.Tensor) -> None:
        """Does nothing, because torch unlocks memory when the tensor is freed. For accelerators that pin otherwise."""

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        """Page-locks `num_bytes` bytes from `address` on for the device.

        Returns False if nothing was done because the device has no such function or does not need it.
        """
        return False

    def unregister_host_memory(self, address: int) -> None:
        """Reverts `register_host_memory`. Does nothing if that returned False."""

    def pin_memory_alignment(self) -> int:
        """Returns the number of bytes of which the address and size of registered memory must be multiples."""
        return 1


def _require_host(device: str | torch.device) -> None:
    import torch

    try:
        is_host = torch.device(device).type == "cpu"
    except RuntimeError:
        is_host = False
    if not is_host:
        raise errors.SettingError("device", str(device), "'cpu': only the host's memory can be page-locked")


class DataTypes(Devices):
    """The dtype part of the interface."""

    def is_bf16_supported(self) -> bool:
        """Returns whether the device computes in bfloat16."""
        is_supported = self._device_function("is_bf16_supported")
        return is_supported is not None and bool(is_supported())

    def is_fp16_supported(self) -> bool:
        """Returns whether the device computes in float16."""
        return True

    def is_fp64_supported(self) -> bool:
        """Returns whether the device computes in float64."""
        return True

    def is_fp8_supported(self) -> bool:
        """Returns whether the device multiplies matrices in float8 (`torch.float8_e4m3fn`, or ROCm's form of it)."""
        return False

    def tensor_dtypes(self, device_index: Device = None) -> frozenset[torch.dtype]:
        """Returns the dtypes of the tensors that the device holds and converts; operators may know fewer.

        Where `torch.accelerator` is for this device, they are those that it reports.
        """
        index, function = self.index_of(device_index), self._torch_accelerator_function("get_device_capability")
        if function is not None:
            return frozenset(function(index)["supported_dtypes"])
        module = self._torch
        whole = {module.uint8, module.int8, module.int16, module.int32, module.int64, module.bool}
        return frozenset({*self.supported_dtypes(), *whole})

    def supported_dtypes(self) -> list[torch.dtype]:
        """Returns the floating-point dtypes that the device computes in, float32 first."""
        module = self._torch
        dtypes: list[torch.dtype] = [module.float32]
        if self.is_fp16_supported():
            dtypes.append(module.float16)
        if self.is_bf16_supported():
            dtypes.append(module.bfloat16)
        if self.is_fp64_supported():
            dtypes.append(module.float64)
        return dtypes

    def _tensor_maker(self, dtype: str) -> Callable[..., torch.Tensor]:
        import functools

        import torch

        return functools.partial(torch.tensor, dtype=getattr(torch, dtype), device=self.torch_device)

    @cached_property
    def BFloat16Tensor(self) -> Callable[..., torch.Tensor]:
        """Makes a bfloat16 tensor on the device from a list of values."""
        return self._tensor_maker("bfloat16")

    @cached_property
    def ByteTensor(self) -> Callable[..., torch.Tensor]:
        """Makes a uint8 tensor on the device from a list of values."""
        return self._tensor_maker("uint8")

    @cached_property
    def DoubleTensor(self) -> Callable[..., torch.Tensor]:
        """Makes a float64 tensor on the device from a list of values."""
        return self._tensor_maker("float64")

    @cached_property
    def FloatTensor(self) -> Callable[..., torch.Tensor]:
        """Makes a float32 tensor on the device from a list of values."""
        return self._tensor_maker("float32")

    @cached_property
    def HalfTensor(self) -> Callable[..., torch.Tensor]:
        """Makes a float16 tensor on the device from a list of values."""
        return self._tensor_maker("float16")

    @cached_property
    def IntTensor(self) -> Callable[..., torch.Tensor]:
        """Makes an int32 tensor on the device from a list of values."""
        return self._tensor_maker("int32")

    @cached_property
    def LongTensor(self) -> Callable[..., torch.Tensor]:
        """Makes an int64 tensor on the device from a list of values."""
        return self._tensor_maker("int64")


HOST = "cpu"
HOST_BUILDERS = "opforge.builders.cpu"
"""The host's builder package. Every accelerator offers its ops: state that is moved off a device is updated there."""


class BuilderLink(Devices):
    """The op-builder part of the interface.

    A builder package has one attribute, `BUILDERS`: a dict from class name to "module:Class". A class name is looked up
    in the accelerator's own package, then in the host's, then among the builders that other packages add. Builders and
    tables are kept in this object, so that two accelerators never share one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._builders: dict[str, Builder] = {}
        self._tables: dict[str, Mapping[str, str]] = {}
        self._external: ExternalBuilders | None = None

    def op_builder_dir(self) -> str:
        """Returns the dotted name of the accelerator's builder package. If it does not exist, there are no own ops."""
        return f"opforge.builders.{self.name}"

    def create_op_builder(self, class_name: str) -> Builder | None:
        """Returns the builder of that class, the same object at each call. None if there is no such op.

        Its target is this accelerator's; for an op that supports the host and not this device, it is the host.
        """
        try:
            return self._builders[class_name]
        except KeyError:
            builder_class = self.get_op_builder(class_name)
            if builder_class is None:
                return None
            from .builder_protocol import create

            builder: Builder = create(builder_class, target_for(builder_class, self.target()))
            return self._builders.setdefault(class_name, builder)

    def get_op_builder(self, class_name: str) -> BuilderClass | None:
        """Returns the builder class of that name. None if there is no such op.

        An error in importing it is raised. BuilderError is raised if another package adds the name, and its entry point
        names an unusable object.
        """
        for package in (self.op_builder_dir(), HOST_BUILDERS):
            if (import_path := self._table(package).get(class_name)) is not None:
                return _import_class(import_path, f"{package}.BUILDERS[{class_name!r}]")
        return self._external_builders().get(class_name)

    def op_builders(self) -> dict[str, str]:
        """Returns the class names of the ops that are offered, each with its owner.

        The owner is this accelerator's name or `cpu`. Only the tables are imported. `create_op_builder` also knows the
        names that a package has in UNLISTED: ops whose libraries are not here. Their builders report the missing parts.
        """
        external = {name: owner for name, (owner, _) in self._external_builders().entries.items()}
        host = dict.fromkeys(self._listed(HOST_BUILDERS), HOST)
        return {**external, **host, **dict.fromkeys(self._listed(self.op_builder_dir()), self.name)}

    def op_builder_problems(self) -> dict[str, str]:
        """Returns why builders of other packages are ignored, by entry point and distribution."""
        return dict(self._external_builders().rejected)

    def load_op(self, class_name: str, verbose: bool = False) -> Any:
        """Finds or builds the op, and returns its functions; `verbose` shows the build's steps.

        Raises what the builder's `load` raises, and OpNotFoundError if the accelerator offers no such op. That error
        lists the offered ops, each with whether it can be built, and similar names.
        """
        try:
            if not isinstance(class_name, str):
                raise errors.SettingError(
                    "class_name", class_name, "the name of an op's builder, such as CPUAdamBuilder"
                )
            builder = self.create_op_builder(class_name)
            if builder is None:
                readiness = {name: self._readiness(name) for name in sorted(self.op_builders())}
                refused = self.op_builder_problems() | self._external_builders().of_others(class_name)
                from .deepspeed_names import served_by

                raise errors.OpNotFoundError(class_name, self.name, readiness, refused, served_by(class_name))
            return builder.load(verbose=verbose)
        except BaseException as error:
            from opforge.foundation import tracebacks

            tracebacks.shorten(error)
            raise

    def build_extension(self) -> type[Any]:
        """Returns the `build_ext` command class for a setup script that compiles against torch."""
        from torch.utils.cpp_extension import BuildExtension

        command: type[Any] = BuildExtension
        return command

    def _table(self, package: str) -> Mapping[str, str]:
        try:
            return self._tables[package]
        except KeyError:
            return self._tables.setdefault(package, _read_table(package))

    def _listed(self, package: str) -> list[str]:
        unlisted = getattr(sys.modules.get(package), "UNLISTED", ())
        return [name for name in self._table(package) if name not in unlisted]

    def _external_builders(self) -> ExternalBuilders:
        if self._external is None:
            from .external_builders import ExternalBuilders

            tables = [(package, self._table(package)) for package in (self.op_builder_dir(), HOST_BUILDERS)]
            self._external = ExternalBuilders(self.name, HOST, tables)
        return self._external

    def _readiness(self, class_name: str) -> str:
        # A broken builder must hide neither the others nor the OpNotFoundError that lists it.
        try:
            builder = self.create_op_builder(class_name)
            compatibility = builder.is_compatible() if builder is not None else None
        except Exception as error:
            return f"broken: {type(error).__name__}: {error}"
        if compatibility is None:
            return "not found"
        from opforge.fast_path.library import loaded_ops

        if getattr(builder, "name", "") in loaded_ops().values():
            return "loaded"
        return "ready to build" if compatibility else "; ".join(compatibility.reasons)


def target_for(builder_class: BuilderClass, target: Target) -> Target | None:
    """Returns the target of a builder of this class under an accelerator with `target`. None means the host's.

    The host's is used if the class has `devices`, and these include the host and not the accelerator's device.
    """
    devices = getattr(builder_class, "devices", (target.device,))
    return None if target.device not in devices and HOST in devices else target


def _import_class(import_path: str, source: str) -> BuilderClass:
    module, colon, attribute = import_path.partition(":")
    if not colon:
        raise errors.BuilderError(source, f"{import_path!r} names no class", "Write it as 'module:Class'.")
    builder_class: BuilderClass = getattr(importlib.import_module(module), attribute)
    return builder_class


def _read_table(package: str) -> Mapping[str, str]:
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        # A missing package means "no ops". An import that fails inside it is an error, and must not look the same.
        if error.name is None or not f"{package}.".startswith(f"{error.name}."):
            raise
        return {}
    try:
        table: Mapping[str, str] = module.BUILDERS
    except AttributeError:
        raise errors.BuilderError(
            f"the builder package {package}",
            "it has no table of builders",
            "Add BUILDERS, a dict from class name to 'module:Class'.",
        ) from None
    return table


ONECCL = "oneccl_bindings_for_pytorch"
ITT_COLLECTOR = ("INTEL_LIBITTNOTIFY64", "INTEL_ITTNOTIFY_GROUPS")
"""The variables by which a profiler such as VTune gives ITT its collector. Without them ITT records nothing."""


class Environment(Devices):
    """The part of the interface for the device's environment: communication, variables, profilers, compilers."""

    triton_backend: ClassVar[bool] = False
    """Whether Triton has a backend for this kind of device."""
    _communication_backend: ClassVar[str] = "gloo"
    _communication_package: ClassVar[str] = ""
    """The module whose import registers the backend with torch; empty if torch or the device's package does that."""
    _oneccl: ClassVar[bool] = False
    """Whether oneCCL's bindings for torch are preferred to that backend if they are installed."""
    _default_compile_backend: ClassVar[str] = "inductor"
    _visible_devices: ClassVar[tuple[str, ...]] = ()
    _exported: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self._compile_backend = self._default_compile_backend

    def communication_backend_name(self) -> str:
        """Returns the name that `torch.distributed.init_process_group` takes."""
        return self._backend[0]

    @cached_property
    def _backend(self) -> tuple[str, str]:
        """The backend's name, and the module whose import registers it; that is empty if none has to be imported."""
        if self._oneccl and _is_installed(ONECCL):
            return "ccl", ONECCL
        return self._communication_backend, self._communication_package

    def init_distributed(self, **options: Any) -> None:
        """Starts torch.distributed with the accelerator's backend. Does nothing if a process group exists already.

        `options` are passed to `torch.distributed.init_process_group`, and may name another `backend`. Raises
        CommunicationError if this torch has no torch.distributed or lacks the backend.
        """
        import torch.distributed

        backend = str(options.pop("backend", None) or self.communication_backend_name())
        if not torch.distributed.is_available():
            raise errors.CommunicationError(self.name, backend, "this torch is built without torch.distributed")
        if torch.distributed.is_initialized():
            return
        own, package = self._backend
        try:
            if backend == own and package:
                importlib.import_module(package)
        except ImportError as error:
            raise errors.CommunicationError(self.name, backend, f"its package cannot be imported: {error}") from error
        for _, _, name in (part.rpartition(":") for part in backend.split(",")):  # such as cpu:gloo,cuda:nccl
            if not torch.distributed.is_backend_available(name):
                raise errors.CommunicationError(self.name, name, "this torch has no such backend")
        torch.distributed.init_process_group(backend=backend, **options)

    def is_triton_supported(self) -> bool:
        """Returns whether Triton is installed and compiles for the device."""
        return self.triton_backend and self._triton_is_installed

    @cached_property
    def _triton_is_installed(self) -> bool:
        return _is_installed("triton")

    def prefer_triton_grouped_mm(self) -> bool:
        """Returns whether a grouped matrix product is faster in Triton than with `torch._grouped_mm`."""
        return False

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        """Calls `callback` once the device is initialised.

        If the device needs no initialisation, the call happens immediately and its result is returned.
        """
        defer = self._device_function("_lazy_call")
        return callback() if defer is None else defer(callback)

    @property
    def supports_nvtx_domain(self) -> bool:
        """Whether `range_push` respects its `domain` and `category`."""
        return False

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        """Opens a named range in the profiler's timeline: the vendor's profiler, or ITT if torch has it."""
        if (ranges := self._ranges) is not None:
            try:
                ranges.range_push(msg)
            except RuntimeError:  # raised by torch and the vendors if the profiler's library is missing
                pass

    def range_pop(self, domain: str | None = None) -> None:
        """Closes the most recent open range."""
        if (ranges := self._ranges) is not None:
            try:
                ranges.range_pop()
            except RuntimeError:
                pass

    @cached_property
    def _ranges(self) -> Any:
        """An object with `range_push(msg)` and `range_pop()`. None if nothing records ranges."""
        if not any(variable in os.environ for variable in ITT_COLLECTOR):
            return None
        import torch.profiler

        itt: Any = torch.profiler.itt
        return itt if itt.is_available() else None

    def amp(self) -> DeviceAmp:
        """Returns torch.amp for the device: a context in which operations choose their precision (autocast).

        `with accelerator.amp():` is `with torch.amp.autocast(device):`. Its `autocast`, `GradScaler`, `custom_fwd` and
        `custom_bwd` are torch.amp's without the argument for the device, as in `torch.cuda.amp`.
        """
        from opforge.accelerator.amp import DeviceAmp

        return DeviceAmp(self.torch_device)

    def export_envs(self) -> list[str]:
        """Returns the prefixes of the environment variables that a launcher copies to remote processes."""
        return [*self._exported]

    def visible_devices_envs(self) -> list[str]:
        """Returns the environment variables that limit which devices a process may use."""
        return [*self._visible_devices]

    def set_visible_devices_envs(
        self, current_env: MutableMapping[str, str], local_accelerator_ids: Iterable[int | str]
    ) -> None:
        """Writes these device numbers into a process's environment, under each name of `visible_devices_envs`."""
        devices = ",".join(map(str, local_accelerator_ids))
        for variable in self.visible_devices_envs():
            current_env[variable] = devices

    def get_compile_backend(self) -> str:
        """Returns the name of the backend that `torch.compile` should use on this device."""
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        """Chooses the backend of `get_compile_backend`. Raises SettingError, which lists the existing ones."""
        if backend != self._default_compile_backend:  # its package may not have registered the default yet
            import torch._dynamo

            backends = torch._dynamo.list_backends(exclude_tags=())
            if backend not in backends:
                raise errors.SettingError("backend", backend, f"one of torch.compile's backends: {', '.join(backends)}")
        self._compile_backend = backend


def _is_installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


INTERFACE_VERSION = 1
"""The version of this interface. A change that breaks existing accelerators increments it."""


SELECT = "opforge.accelerator.select"


class Accelerator(RandomNumbers, Streams, Memory, DataTypes, Graphs, Pinning, BuilderLink, Environment):
    """The properties and operations of one kind of device.

    Sizes are in bytes, and `device_index` None means the current device. If a device lacks a feature, the method does
    nothing or returns an emulation: no method that returns a callable or a class ever returns None. A subclass sets
    `name`, `torch_device`, `synchronous` and `interface_version`, and its constructor takes no argument.
    """

    interface_version: ClassVar[int]
    """The INTERFACE_VERSION that the class was written for, as a number; opforge rejects a class with another one."""

    @property
    def _name(self) -> str:
        """The name, as DeepSpeed's code reads it (`get_accelerator()._name`)."""
        return self.name

    def capabilities(self) -> Capabilities:
        """Returns the accelerator's capabilities, as one frozen value; the first call probes the device."""
        if self._capabilities is None:
            self._capabilities = self._find_capabilities()
        return self._capabilities

    def _find_capabilities(self) -> Capabilities:
        from opforge.accelerator.capabilities import Capabilities
        from opforge.accelerator.host.topology import Topology

        host = Topology.read(self.root)
        return Capabilities(
            device=self.name,
            device_name=self._model(),
            device_count=self.device_count(),
            dtypes=tuple(str(dtype).removeprefix("torch.") for dtype in self.supported_dtypes()),
            arch="+".join(self.target().arch),
            simd=self._simd(),
            triton=self.is_triton_supported(),
            graphs=self._captures_graphs(),
            total_memory=self.total_memory(),
            numa_nodes=tuple(node.number for node in host.nodes),
            memory_only_nodes=tuple(node.number for node in host.memory_only_nodes),
            cores=host.cores,
            threads=host.threads,
            compute_capability=self._compute_capability(),
        )

    def _model(self) -> str:
        get_name = self._device_function("get_device_name")
        return self.name if get_name is None else str(get_name())

    def _simd(self) -> tuple[str, ...]:
        return ()

    def _compute_capability(self) -> tuple[int, int] | None:
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def __copy__(self) -> Accelerator:
        """Returns this object: a copy of an object that refers to it uses the same device."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Accelerator:
        """Returns this object, as `__copy__` does: a model that keeps it as an attribute can be copied."""
        return self

    def __reduce__(self) -> tuple[Callable[[], Accelerator], tuple[()]]:
        """Pickles as the accelerator in use, which in the process that unpickles it may be another one."""
        in_use: Callable[[], Accelerator] = importlib.import_module(SELECT).get_accelerator
        return in_use, ()
