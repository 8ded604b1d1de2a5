"""cuda.core: programs that it compiles, given through its own interface of caches.

    program.compile("cubin", cache=opforge.jits.cuda_core_cache.ProgramCache())

cuda.core has no place where a cache could be set for all programs. Its key has source, options and NVRTC's version;
what it cannot know, such as headers of an include path, it refuses itself.
"""

from __future__ import annotations

from collections.abc import Callable

from .adapter import Adapter

FILE = "code"


class CudaCore(Adapter):
    """Keeps what `ProgramCache` is given."""

    name, module, package, versions, holds, carries = "cuda-core", "cuda.core", "cuda-core", ("1.2",), "gpu", FILE

    def install(self) -> Callable[[], object]:
        """Changes nothing: a program names its cache."""
        return lambda: None


CUDA_CORE = CudaCore()
