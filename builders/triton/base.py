"""`TritonOpBuilder`: an op whose kernels are written in Triton, compiled ahead of time for each declared signature."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from opforge import settings
from opforge.accelerator.target import Target
from opforge.builders.base import OpBuilder
from opforge.builders.spec import abi as abis
from opforge.builders.spec import kernel_roots
from opforge.builders.toolchains import portable
from opforge.builders.toolchains.host import HostToolchain
from opforge.builders.toolchains.triton import LAUNCHER, TritonToolchain, exact
from opforge.cache.store import Store
from opforge.errors import BuilderError

from .kernels import Kernel, check_kernels, kernel_texts
from .launching import PrebuiltKernels, TritonOp

if TYPE_CHECKING:
    from opforge.builders.spec.build_plan import BuildPlan
    from opforge.builders.spec.description import OpDescription
    from opforge.builders.toolchains.toolchain import Toolchain

KERNELS = kernel_roots.KernelRoot(
    "opforge-triton", os.path.join(os.path.dirname(kernel_roots.OPFORGE.path), "triton"), include=""
)
"""Where opforge's own Triton kernels lie, in `kernels`. They are named by their files, never imported by module."""


class TritonOpBuilder(OpBuilder):
    """Declares the kernels of one op. `load()` gives the functions of `front`, which launch them.

    The library holds the code of every kernel for every architecture of the target, and opforge's launcher: neither
    Triton nor a compiler is needed where it is loaded. With OPFORGE_TRITON_JIT=1 or TRITON_INTERPRET=1 nothing is
    built: the same functions launch through Triton itself, which compiles, or interprets, what it meets.
    """

    abi: ClassVar[str] = abis.PLAIN
    devices: ClassVar[Sequence[str]] = ("cuda", "hip")
    kernels: ClassVar[Sequence[Kernel]] = ()
    """The signatures to compile, each with a name that the front launches it by."""
    front: ClassVar[str] = ""
    """A module, by name, with the op's functions: `bind(kernels)` is called with what launches them, and gives them
    back by name. It must import no Triton."""

    _op: TritonOp | None = None

    @property
    def sources(self) -> Sequence[str]:  # type: ignore[override]
        """The kernels' files and the launcher's."""
        return (*dict.fromkeys(kernel.source for kernel in self.kernels), *LAUNCHER)

    def search_roots(self) -> tuple[kernel_roots.KernelRoot, ...]:
        own, *others = super().search_roots()
        return (own, *others[:-1], KERNELS, others[-1])

    def toolchain(self, store: Store) -> Toolchain:
        if not self.portable:
            return TritonToolchain(store.layout, store.disk)
        machine = Target("cpu", (os.uname().machine.replace("_", "-"),))
        host = portable(self.name, machine, store.layout, store.disk)
        assert isinstance(host, HostToolchain)
        return TritonToolchain(store.layout, store.disk, host)

    def plan(self, toolchain: Toolchain) -> BuildPlan:
        return super().plan(toolchain)._replace(kernels=tuple(kernel_texts(self.kernels).items()))

    def describe(self) -> OpDescription:
        described = super().describe()
        return described._replace(defines=(*described.defines, *kernel_texts(self.kernels).items()))

    def _check(self) -> None:
        super()._check()
        if not self.kernels:
            raise BuilderError(type(self).__name__, "it declares no kernels", "Give it at least one in `kernels`")
        check_kernels(type(self).__name__, self.kernels)

    def _concrete(self, asked: Target | None) -> Target:
        """The target as asked, as Triton compiles for it; by default the GPU that torch uses here."""
        target = super()._concrete(asked or present_device())
        return Target("cuda", exact(target.arch)) if target.device == "cuda" else target

    def load(self, verbose: bool = False) -> TritonOp:
        """The op's functions, as attributes; see OpBuilder.load. Raises as it does.

        Kernels are brought onto a device when they are first launched there: a launch that the driver refuses, or for
        which nothing was built, raises KernelLaunchError.
        """
        if settings.triton_jit():
            from .jit import JitKernels

            if self._op is None or not isinstance(self._op.kernels, JitKernels):
                self._check()
                self._op = self._bind(JitKernels(self.name, self.kernels, self.search_roots()), "jit")
            return self._op
        library = super().load(verbose)
        if self._op is None or self._op.library is not library:
            self._op = self._bind(PrebuiltKernels(self.name, library, self.kernels), library.origin, library)
        return self._op

    def _bind(self, kernels: Any, origin: str, library: Any = None) -> TritonOp:
        functions: dict[str, Callable[..., Any]] = {}
        if self.front:
            import importlib

            functions = importlib.import_module(self.front).bind(kernels)
        return TritonOp(self.name, kernels, functions, origin, library)


def present_device() -> Target | None:
    """Returns the GPUs that torch uses here, as a target; None if there is none, or if torch was not imported."""
    if "torch" not in sys.modules:
        return None
    from opforge.accelerator.by_device import accelerator_of

    accelerator = accelerator_of("cuda")
    return accelerator.target() if accelerator.is_available() else None
