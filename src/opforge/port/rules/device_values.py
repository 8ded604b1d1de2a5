"""Strings that name a device, a backend or a vendor's variable, and `torch.device('cuda', i)`."""

from __future__ import annotations

import libcst as cst

from opforge.port.conversions import in_parentheses_of
from opforge.port.device_strings import (
    LITERALS,
    DeviceString,
    literal_value,
    parse_device_call,
    parse_device_string,
)
from opforge.port.matching import is_current_device
from opforge.port.positions import Role, is_compared, role_of, roles_of_variable
from opforge.port.references import Module
from opforge.port.vendors import BACKENDS, vendors_of_string

UNKNOWN_ROLE = "a string that may or may not be a device: its use here does not show which"


def visit_device_call(module: Module, call: cst.Call) -> None:
    """Visits `torch.device('cuda', i)`. The argument of `torch.device('cuda')` is visited as a string."""
    if len(call.args) < 2 or module.syntax.qualified_name(call.func) != "torch.device":
        return
    device = parse_device_call(call)
    if device is None or device.device_index is None:
        return
    is_current = is_current_device(module.syntax, device.device_index)

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Call)
        device = parse_device_call(old)
        # The index is a vendor's `current_device()`: one `current_device_name()` replaces the string and the index.
        name = module.write.call("current_device_name") if is_current else None
        return old.with_changes(
            args=[cst.Arg(name or module.write.call("device_name", device and device.device_index))]
        )

    module.handled.update(argument.value for argument in call.args if parse_device_string(argument.value) is not None)
    if is_current and isinstance(device.device_index, cst.Call):
        module.handled.update((device.device_index, device.device_index.func))
    module.convert(call, device.vendor, convert)


def visit_string(module: Module, node: cst.BaseExpression) -> None:
    """Visits an expression that may spell a device, or that names a backend or another vendor's name."""
    device = parse_device_string(node)
    text = literal_value(node)
    vendors = vendors_of_string(text) if text is not None else (device.vendor,) if device else ()
    if not vendors or isinstance(module.syntax.parent(node), cst.Expr):  # no code uses a docstring
        return
    if not isinstance(node, LITERALS):
        _mark_literal_handled(module, node)
    role = role_of(module.syntax, node)
    if role is None:
        roles, _name = roles_of_variable(module.syntax, node)
        role = next((use for use in roles if use in (Role.DEVICE, Role.TYPE, Role.BACKEND)), None)
    if device is not None and (role is Role.DEVICE or (role is Role.TYPE and device.device_index is None)):
        _convert_device(module, node, device)
    elif text in BACKENDS and role is Role.BACKEND:
        module.convert(
            node, vendors, lambda old: in_parentheses_of(old, module.write.call("communication_backend_name"))
        )
    else:
        module.leave(node, vendors, UNKNOWN_ROLE if device else "a vendor's string, which has no known replacement")


def _convert_device(module: Module, node: cst.BaseExpression, device: DeviceString) -> None:
    is_current = is_current_device(module.syntax, device.device_index)
    if is_current and isinstance(device.device_index, cst.Call):
        module.handled.update((device.device_index, device.device_index.func))

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.BaseExpression)
        if is_current:
            return in_parentheses_of(old, module.write.call("current_device_name"))
        device = parse_device_string(old)
        return in_parentheses_of(old, module.write.call("device_name", device and device.device_index))

    module.convert(node, device.vendor, convert, selects_vendor=is_compared(module.syntax, node))


def _mark_literal_handled(module: Module, node: cst.BaseExpression) -> None:
    """Marks the string literal within an expression that spells a device."""
    if isinstance(node, cst.BinaryOperation):
        module.handled.add(node.left)
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        module.handled.update((node.func, node.func.value))
