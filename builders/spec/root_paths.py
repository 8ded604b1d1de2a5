"""Where the roots that a plan names lie on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import abi, installed_torch, kernel_roots

if TYPE_CHECKING:
    from .op_spec import OpSpec


def root_paths(spec: OpSpec, toolchain_roots: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns where each root of the spec's plan lies, by the root's name.

    `toolchain_roots` are those that the toolchain adds. Without a toolchain they are missing: what is built already
    needs no compiler, and so none of its headers.
    """
    paths = {root.name: root.path for root in spec.roots}
    torch = installed_torch.torch_folder() if spec.abi != abi.PLAIN else None
    if torch:
        paths["torch"] = torch
    if spec.abi == abi.TORCH:
        paths["python"] = installed_torch.python_include()
    for number, folder in enumerate(spec.include_dirs):
        if is_own_root(spec, folder):
            paths[f"include{number}"] = os.path.realpath(folder)
    paths["system"] = "/"
    paths.update(toolchain_roots or {})
    return paths


def is_own_root(spec: OpSpec, folder: str) -> bool:
    """Returns whether an include folder is a root of its own: an absolute path outside of every kernel root."""
    return os.path.isabs(folder) and not kernel_roots.holding(folder, spec.declared_roots)
