"""Launches kernels that were compiled ahead of time, through the launcher inside their library."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Protocol

from opforge.errors import KernelLaunchError
from opforge.foundation import tracebacks

from .kernel import Kernel

_TEXT = ctypes.c_char_p
SIGNATURES: Mapping[str, tuple[Any, list[Any]]] = {
    "opforge_kernels": (_TEXT, []),
    "opforge_find": (_TEXT, [_TEXT, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)]),
    "opforge_launch": (
        _TEXT,
        [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, _TEXT],
    ),
}
"""The launcher's functions; see ops/csrc/launcher/launch.cpp."""


def not_on_a_gpu(op: str, name: str, tensor: Any) -> KernelLaunchError:
    """Returns the error for a launch with a tensor of the host, or of another device."""
    advice = "OPFORGE_TRITON_JIT=1 and TRITON_INTERPRET=1 run it without one, slowly"
    reason = f"it was called with a tensor on {tensor.device}, expected one on a GPU: {advice}"
    return KernelLaunchError(op, name, reason)


Grid = tuple[int, int, int] | Callable[[Mapping[str, Any]], tuple[int, int, int]]
"""The grid of a launch, or a function that returns it for the constants of the kernel that is launched."""
Choice = tuple[int, int, str]
"""The lowest and the highest number of elements of calls, and the name of the kernel that these launch."""


class Kernels(Protocol):
    """The launcher of an op's kernels: its own library, or Triton."""

    op: str

    def launch(self, name: str, grid: Grid, *arguments: Any) -> None:
        """Launches the kernel `name` on the device and the current stream of the first argument, a tensor.

        `arguments` are the kernel's run-time arguments in their order: tensors, and numbers. Of a kernel with configs
        the one is launched that was found to be fastest for so many elements of the first. Raises KernelLaunchError.
        """

    def __contains__(self, name: object) -> bool: ...


class TritonOp:
    """A loaded Triton op: its functions as attributes. `kernels` launches a kernel by name, for tests and tools.

    `path`, `origin` and `library` are those of its library, unless the op has a function of that name.
    """

    def __init__(
        self, name: str, kernels: Kernels, functions: Mapping[str, Callable[..., Any]], origin: str, library: Any
    ) -> None:
        self.__name__, self.kernels, self.__file__ = name, kernels, library.__file__ if library else ""
        self._functions = dict(functions)
        self._attributes = {"origin": origin, "library": library, "path": self.__file__}

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if not name.startswith("_"):
            for values in (own.get("_functions", {}), own.get("_attributes", {})):
                if name in values:
                    return values[name]
        offered = own.get("_functions", ())
        text = f"the op {own.get('__name__')!r} has no function {name!r}; it has: {', '.join(offered)}"
        error = AttributeError(text)
        try:
            raise error
        except AttributeError:
            tracebacks.explain_missing(error, name, offered)
            raise

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._functions, *self._attributes})

    def __repr__(self) -> str:
        from opforge.builders.display import representation

        return representation.python_op_text(self, self._functions, self._attributes["origin"])

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """The text of help(): the functions with their signatures."""
        from opforge.builders.display import representation

        return representation.python_op_help(self, self._functions, self._attributes["origin"])


class PrebuiltKernels:
    """The kernels of a loaded library."""

    def __init__(self, op: str, library: Any, kernels: Iterable[Kernel]) -> None:
        self.op = op
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._find, self._launch, self._library = library.opforge_find, library.opforge_launch, library
        kernels = list(kernels)
        self.choices: dict[str, list[Choice]] = {}
        """By the name that launches use; a call of no other size takes the kernel of that name."""
        self._constants = {kernel.name: kernel.constants for kernel in kernels}
        self._packing = {kernel.name: (struct.Struct(kernel.packing()).pack, kernel.pointers()) for kernel in kernels}
        self._ready: dict[tuple[str, int], ctypes.c_void_p] = {}
        self.raw_stream: Callable[[int], int] | None = None
        """From a device's number to the handle of its current stream; the accelerator's, from the first launch on."""

    def __contains__(self, name: object) -> bool:
        return name in self._packing

    def images(self) -> list[dict[str, Any]]:
        """Returns each image in the library: kernel, arch, bytes, shared memory (bytes a block), threads a block."""
        lines = self._library.opforge_kernels().decode().splitlines()
        names = ("bytes", "shared", "threads")
        return [
            {"kernel": kernel, "arch": arch, **dict(zip(names, map(int, numbers), strict=True))}
            for kernel, arch, *numbers in (line.split() for line in lines)
        ]

    def launch(self, name: str, grid: Grid, *arguments: Any) -> None:
        """Launches the kernel: see Kernels.launch."""
        if self.choices and name in self.choices:
            size = arguments[0].numel()
            name = next((other for low, high, other in self.choices[name] if low <= size <= high), name)
        if type(grid) is not tuple:
            grid = grid(self._constants[name])  # type: ignore[operator]
        device = arguments[0].get_device()
        ready = self._ready.get((name, device)) or self._make_ready(name, device, arguments[0])
        pack, pointers = self._packing[name]
        values = [*arguments]
        try:
            for at in pointers:
                value = values[at]
                if type(value) is not int:
                    if value.get_device() != device and value.get_device() < 0 and not value.is_pinned():
                        self._refuse(name, value)
                    values[at] = value.data_ptr()
            packed = pack(*values)
        except (struct.error, IndexError) as error:
            raise KernelLaunchError(self.op, name, f"its arguments do not fit what was declared: {error}") from error
        problem = self._launch(ready, self.raw_stream(device), *grid, packed)  # type: ignore[misc]
        if problem is not None:
            raise KernelLaunchError(self.op, name, problem.decode(errors="replace"))

    def _make_ready(self, name: str, device: int, tensor: Any) -> ctypes.c_void_p:
        if device < 0:
            self._refuse(name, tensor)
        if name not in self._packing:
            raise KernelLaunchError(self.op, name, "the builder declares no such kernel")
        handle = ctypes.c_void_p()
        if (problem := self._find(name.encode(), device, ctypes.byref(handle))) is not None:
            raise KernelLaunchError(self.op, name, problem.decode(errors="replace"))
        if self.raw_stream is None:
            from opforge.accelerator.by_device import accelerator_of

            self.raw_stream = accelerator_of(tensor.device.type).raw_stream_function()
        self._ready[name, device] = handle
        return handle

    def _refuse(self, name: str, tensor: Any) -> NoReturn:
        """Raises KernelLaunchError: a kernel that reads the memory of another device ends the use of its own."""
        raise not_on_a_gpu(self.op, name, tensor)
