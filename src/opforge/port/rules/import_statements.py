"""Import statements that bind a module to a vendor, or to DeepSpeed's accelerator."""

from __future__ import annotations

import libcst as cst

from opforge.port.conversions import DEEPSPEED_MODULES, imported_module
from opforge.port.names import short_name
from opforge.port.references import Module
from opforge.port.vendors import PACKAGES

COMMON_NAMES = frozenset({"get_accelerator", "set_accelerator"})
"""Names that DeepSpeed's accelerator package and opforge both offer."""


def visit_import(module: Module, node: cst.Import | cst.ImportFrom) -> None:
    """Visits an import. An import of `torch.<vendor>` works on every machine and is no reference."""
    if isinstance(node, cst.Import):
        for alias in node.names:
            _visit_package(module, node, alias.evaluated_name)
        return
    name = imported_module(node)
    _visit_package(module, node, name)
    if name in DEEPSPEED_MODULES:
        _visit_deepspeed_import(module, node)
    elif isinstance(node.names, cst.ImportStar) and short_name(name) is not None:
        module.leave(node, name.split(".")[1], "which names it imports is not visible here")


def _visit_package(module: Module, node: cst.Import | cst.ImportFrom, name: str) -> None:
    if (vendor := PACKAGES.get(name.partition(".")[0])) is not None:
        module.leave(node, vendor, "a package that exists only on this vendor's machines")


def _visit_deepspeed_import(module: Module, node: cst.ImportFrom) -> None:
    names = {"*"} if isinstance(node.names, cst.ImportStar) else {alias.evaluated_name for alias in node.names}
    if not names <= COMMON_NAMES:
        others = ", ".join(sorted(names - COMMON_NAMES))
        module.leave(node, "", f"opforge has no {others}: import the names that it has from opforge")
        return
    module.convert(node, "", lambda old: old.with_changes(module=cst.Name("opforge")), needs="nothing")
