"""`OpSpec`: an op's declaration, checked and resolved for one target."""

from __future__ import annotations

from typing import NamedTuple

from opforge.accelerator.target import Target

from .kernel_roots import KernelRoot


class OpSpec(NamedTuple):
    """A frozen value. Equal specs, toolchains and environments have equal plans."""

    name: str
    builder: str
    """The builder class's name, for error messages."""
    package: str
    """The top-level package that declares the builder: its installed folder may hold prebuilt entries."""
    version: str
    abi: str
    target: Target
    """Concrete: no "native", and an architecture wherever one is needed."""
    devices: tuple[str, ...]
    """The devices that the op can be built for."""
    torch_target: str
    sources: tuple[str, ...]
    include_dirs: tuple[str, ...]
    defines: tuple[tuple[str, str], ...]
    """Sorted by name."""
    cxx_flags: tuple[str, ...]
    device_flags: tuple[str, ...]
    """Flags for the sources of the target's device."""
    link_flags: tuple[str, ...]
    libraries: tuple[str, ...]
    roots: tuple[KernelRoot, ...]
    """Where sources are searched, in order: the builder's own folder, its kernel roots, opforge's."""
    debug: bool
    sanitize: str
    portable: bool
    sysroot: str = ""
    """The sysroot that a portable build uses."""
    toolchain: str = ""
    """The toolchain as "module:Class"; empty for the one that serves the target's device."""
    kernels: tuple[tuple[str, str], ...] = ()
    """Triton kernels by name, each with its signature, constants and options as text."""
    extension_libraries: tuple[str, ...] | None = None
    """For a library that is imported without opforge: the torch libraries that it names. It registers its ops itself.
    None for a library that opforge loads."""

    @property
    def mode_flags(self) -> tuple[str, ...]:
        """Returns the compiler flags that `debug` and `sanitize` stand for."""
        flags = ("-g", "-fno-omit-frame-pointer") if self.debug or self.sanitize else ()
        return (*flags, f"-fsanitize={self.sanitize}") if self.sanitize else flags

    @property
    def uses_host_compiler(self) -> bool:
        """Returns whether the host's own compiler, and nothing else, builds the op."""
        return self.target.device == "cpu" and not self.portable and not self.toolchain

    @property
    def declared_roots(self) -> tuple[KernelRoot, ...]:
        """Returns the kernel roots between the builder's own folder and opforge's."""
        return self.roots[1:-1]
