"""`TritonOpBuilder`: an op whose kernels are written in Triton, compiled ahead of time for each declared signature.

It only declares what is compiled. `builders/toolchains/triton.py` compiles it: it plans the steps, of which
`triton_worker.py` beside it runs Triton in a process of its own. `launching.py` launches the built kernels.
The builders of opforge's own Triton ops are in `builders/triton`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from opforge.accelerator.target import Target
from opforge.builders import toolchains
from opforge.builders.base import Loaded, OpBuilder
from opforge.builders.declaration import abi, kernel_roots
from opforge.builders.toolchains.triton import LAUNCHER, compiled_archs
from opforge.errors import BuilderError
from opforge.fast_path.library import python_functions
from opforge.foundation import settings

from .kernel import Kernel, check_kernels, kernel_texts, with_variants
from .launching import Kernels, PrebuiltKernels, TritonOp

if TYPE_CHECKING:
    from opforge.builders.declaration.op_spec import OpSpec

KERNELS = kernel_roots.KernelRoot(
    "opforge-triton", os.path.join(os.path.dirname(kernel_roots.OPFORGE.path), "triton"), include=""
)
"""Where opforge's own Triton kernels lie, in `kernels`. They are named by their files, never imported by module."""


class TritonOpBuilder(OpBuilder):
    """Declares the kernels of one op. `load()` returns the functions that launch them.

    The library holds the code of every kernel for every architecture of the target, and opforge's launcher: neither
    Triton nor a compiler is needed where it is loaded. With OPFORGE_TRITON_JIT=1 or TRITON_INTERPRET=1 nothing is
    built: the same functions launch through Triton itself, which compiles or interprets the kernels.

    Kernels are brought onto a device when they are first launched there: a launch that the driver refuses, or whose
    kernel was not built, raises KernelLaunchError.
    """

    abi: ClassVar[str] = abi.PLAIN
    devices: ClassVar[Sequence[str]] = ("cuda", "hip")
    toolchain: ClassVar[str] = toolchains.TOOLCHAINS["triton"]
    kernels: ClassVar[Sequence[Kernel]] = ()
    """The signatures to compile, each with a name that the Python functions launch it by.

    `python_functions` is called with what launches the kernels. Its module must not import Triton.
    """
    compiles_configs: bool = True
    """Whether each library holds the kernels of `configs` too. If not, `opforge tune` builds one that does, and a load
    takes that one if a tuning result names one of them."""

    @property
    def sources(self) -> Sequence[str]:  # type: ignore[override]
        """The kernels' files and the launcher's."""
        return (*dict.fromkeys(kernel.source for kernel in self.kernels), *LAUNCHER)

    def spec(self) -> OpSpec:
        """Returns the declaration, with the kernels and with the target as Triton compiles for it."""
        builder = type(self).__name__
        if not self.kernels or not isinstance(self.kernels, Sequence):
            raise BuilderError(builder, "it declares no kernels", "Declare at least one in `kernels`, a list")
        check_kernels(builder, self.kernels)
        if self.compiles_configs:  # otherwise each load would make kernels that its library does not have
            check_kernels(builder, self._compiled())
        spec = super().spec()
        own, *others, opforge = spec.roots
        target = spec.target
        if target.device == "cuda":
            target = Target("cuda", compiled_archs(target.arch))
        texts = tuple(kernel_texts(self._compiled()).items())
        return spec._replace(roots=(own, *others, KERNELS, opforge), target=target, kernels=texts)

    def _load(self, loaded: Loaded, verbose: bool) -> None:
        if not settings.launches_through_triton():
            super()._load(loaded, verbose)
            return
        from .triton_jit import JitKernels

        kernels = JitKernels(self.name, self.kernels, self.spec().roots)
        loaded.library = self._op(kernels, "jit", None)
        loaded.watch_all(kernels.files)

    def _bind(self, library: Any) -> TritonOp:
        if isinstance(library, TritonOp):
            return library
        kernels = PrebuiltKernels(self.name, library, self._compiled())
        if any(kernel.configs for kernel in self.kernels):
            from . import tuned  # for ops alone that have something to tune

            chosen = tuned.chosen(self, library.__entry__, kernels)
            if chosen and not self.compiles_configs:
                if (op := tuned.load_with_configs(self)) is not None:
                    return op
            else:
                kernels.choices = chosen
        return self._op(kernels, library.__entry__.origin, library)

    def _compiled(self) -> Sequence[Kernel]:
        """Returns the kernels that are in the library."""
        return with_variants(self.kernels) if self.compiles_configs else self.kernels

    def _op(self, kernels: Kernels, origin: str, library: Any) -> TritonOp:
        further = python_functions(self.python_functions, kernels, self.name)
        return TritonOp(self.name, kernels, further, origin, library)
