"""tvm-ffi: the libraries of `tvm_ffi.cpp.load_inline`, `load` and `build`, in folders that tvm-ffi chooses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from . import private_folder
from .ninja import NinjaAdapter

CACHE = "TVM_FFI_CACHE_DIR"


class TvmFfi(NinjaAdapter):
    """Runs tvm-ffi's ninja in a private folder: its own cache would be loaded later without a check of signers."""

    name, module, package, versions = "tvm-ffi", "tvm_ffi.cpp.extension", "apache-tvm-ffi", ("0.1",)

    def packages(self) -> Sequence[str]:
        """Returns the folder of tvm-ffi."""
        import tvm_ffi

        return [os.path.dirname(os.path.realpath(tvm_ffi.__file__))]

    def install(self) -> Callable[[], object]:
        """Replaces the call of ninja."""
        from tvm_ffi.cpp import extension

        original, before, own = extension.build_ninja, os.environ.get(CACHE), private_folder.new(self.name)

        def build_ninja(build_dir: str) -> None:
            if build_dir.startswith(own):
                self.run(build_dir, lambda: original(build_dir))
            else:  # a folder that the program has chosen
                original(build_dir)

        extension.build_ninja, os.environ[CACHE] = build_ninja, own

        def end() -> None:
            extension.build_ninja = original
            if before is None:
                os.environ.pop(CACHE, None)
            else:
                os.environ[CACHE] = before

        return end


TVM_FFI = TvmFfi()
