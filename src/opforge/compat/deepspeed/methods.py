"""Methods of DeepSpeed's builders, for opforge's builders that replace them: what they return is opforge's declaration.

Without them a caller would get a list where DeepSpeed has a method, and `jit_load` would build DeepSpeed's own op.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from opforge.builders.declaration import kernel_roots
from opforge.builders.declaration.include_folders import include_folders
from opforge.builders.declaration.op_spec import OpSpec, root_paths
from opforge.errors import BuilderError


def sources(self: Any) -> list[str]:
    """Returns the paths of the op's sources."""
    spec: OpSpec = self.spec()
    return _paths(spec, kernel_roots.locate_pairs(spec.name, spec.sources, spec.roots))


def include_paths(self: Any) -> list[str]:
    """Returns the folders in which the op's headers are searched."""
    spec: OpSpec = self.spec()
    roots = [(root.name, root.include) for root in spec.roots if kernel_roots.has_headers(root)]
    return _paths(spec, [*include_folders(spec, spec.include_dirs), *roots])


def cxx_args(self: Any) -> list[str]:
    """Returns the op's own flags for the C++ compiler."""
    spec: OpSpec = self.spec()
    macros = [f"-D{name}={value}" if value else f"-D{name}" for name, value in spec.defines]
    return [*spec.mode_flags, *macros, *spec.cxx_flags]


def nvcc_args(self: Any) -> list[str]:
    """Returns the op's own flags for the device's compiler."""
    return [*self.spec().device_flags]


def extra_ldflags(self: Any) -> list[str]:
    """Returns the op's own flags for the link."""
    return [*self.spec().link_flags]


def libraries_args(self: Any) -> list[str]:
    """Returns the names of the libraries that the op links."""
    return [*self.spec().libraries]


def jit_load(self: Any, verbose: bool = True) -> Any:
    """Returns the op, as `load` does."""
    return self.load(verbose)


def builder(self: Any) -> Any:
    """Raises BuilderError: there is no extension for DeepSpeed's setup script."""
    name = type(self).__name__
    problem = "builder() describes an extension for DeepSpeed's setup script, and this op is opforge's"
    raise BuilderError(name, problem, f"Build it ahead of time by `build-ops {name}`")


METHODS: dict[str, Callable[..., Any]] = {
    method.__name__: method
    for method in (
        sources,
        include_paths,
        cxx_args,
        nvcc_args,
        extra_ldflags,
        libraries_args,
        jit_load,
        builder,
    )
}


def _paths(spec: OpSpec, rooted: Iterable[tuple[str, str]]) -> list[str]:
    roots = root_paths(spec)
    return [os.path.normpath(os.path.join(roots[root], path)) for root, path in rooted]
