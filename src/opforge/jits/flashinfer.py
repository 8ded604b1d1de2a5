"""FlashInfer: the modules that it compiles with nvcc, by the same ninja as tvm-ffi's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from . import private_folder
from .adapter import version_of
from .ninja import NinjaAdapter


class FlashInfer(NinjaAdapter):
    """Runs FlashInfer's ninja in a private folder. FlashInfer loads the libraries that it ships itself."""

    name, module, package, versions = "flashinfer", "flashinfer.jit.core", "flashinfer-python", ("0.7",)

    def packages(self) -> Sequence[str]:
        """Returns the folders of FlashInfer, with its copies of CUTLASS and others, and of tvm-ffi."""
        modules = [import_module(name) for name in ("flashinfer", "tvm_ffi")]
        return [os.path.dirname(os.path.realpath(str(module.__file__))) for module in modules]

    def settings(self) -> dict[str, str]:
        """Returns the version of tvm-ffi too, whose headers the modules include."""
        return {**super().settings(), "apache-tvm-ffi": version_of("apache-tvm-ffi")}

    def install(self) -> Callable[[], object]:
        """Replaces the call of ninja."""
        core: Any = import_module("flashinfer.jit.core")
        original, before = core.run_ninja, core.jit_env.FLASHINFER_JIT_DIR
        own = private_folder.new(self.name)

        def run_ninja(workdir: Path, *others: Any, **named: Any) -> None:
            if str(workdir).startswith(own):
                self.run(str(workdir), lambda: original(workdir, *others, **named))
            else:
                original(workdir, *others, **named)

        core.run_ninja, core.jit_env.FLASHINFER_JIT_DIR = run_ninja, Path(own)

        def end() -> None:
            core.run_ninja, core.jit_env.FLASHINFER_JIT_DIR = original, before

        return end


FLASHINFER = FlashInfer()
