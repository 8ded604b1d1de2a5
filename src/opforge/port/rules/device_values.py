"""Ties by value: strings that name a device, a backend or a vendor's variable, and `torch.device('cuda', i)`."""

from __future__ import annotations

import libcst as cst

from opforge.port.conversions import in_parentheses_of
from opforge.port.positions import Want, is_compared, wanted, wanted_of_name
from opforge.port.ties import Module
from opforge.port.vendors import BACKENDS, vendors_of_string

from .device_strings import Spelt, device_argument, spelt
from .vendor_names import is_current_device

NOT_WANTED = "a string that may be a device or something else: nothing here says which"


def look_at_device_call(module: Module, call: cst.Call) -> None:
    """Look at `torch.device('cuda', i)`. One string alone is looked at by itself."""
    if len(call.args) < 2 or module.syntax.meaning(call.func) != "torch.device":
        return
    device = device_argument(call)
    if device is None or device.number is None:
        return
    current = is_current_device(module, device.number)

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Call)
        device = device_argument(old)
        # A converted current_device() stands as it is where the number was.
        name = module.write.call("current_device_name") if current else None
        return old.with_changes(args=[cst.Arg(name or module.write.call("device_name", device and device.number))])

    module.settled.update(one.value for one in call.args if spelt(one.value) is not None)
    if current and isinstance(device.number, cst.Call):
        module.settled.update((device.number, device.number.func))
    module.convert(call, device.vendor, convert)


def look_at_string(module: Module, node: cst.BaseExpression) -> None:
    """Look at an expression that may spell a device, or name a backend or something else of a vendor's."""
    device = spelt(node)
    literal = isinstance(node, cst.SimpleString | cst.ConcatenatedString)
    text = node.evaluated_value if isinstance(node, cst.SimpleString | cst.ConcatenatedString) else None
    vendors = vendors_of_string(text) if isinstance(text, str) else (device.vendor,) if device else ()
    if not vendors or _is_prose(module, node):
        return
    if not literal:
        _settle_literal(module, node)
    want = wanted(module.syntax, node)
    if want is None:
        uses, _name = wanted_of_name(module.syntax, node)
        want = next((use for use in uses if use in (Want.DEVICE, Want.TYPE, Want.BACKEND)), None)
    if device is not None and (want is Want.DEVICE or (want is Want.TYPE and device.number is None)):
        _name_device(module, node, device)
    elif text in BACKENDS and want is Want.BACKEND:
        module.convert(
            node, vendors, lambda old: in_parentheses_of(old, module.write.call("communication_backend_name"))
        )
    else:
        module.leave(
            node, vendors, NOT_WANTED if device else "a string of one vendor's, which is not known to be replaceable"
        )


def _name_device(module: Module, node: cst.BaseExpression, device: Spelt) -> None:
    current = is_current_device(module, device.number)
    if current and isinstance(device.number, cst.Call):
        module.settled.update((device.number, device.number.func))

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.BaseExpression)
        if current:
            return in_parentheses_of(old, module.write.call("current_device_name"))
        device = spelt(old)
        return in_parentheses_of(old, module.write.call("device_name", device and device.number))

    module.convert(node, device.vendor, convert, asks=is_compared(module.syntax, node))


def _settle_literal(module: Module, node: cst.BaseExpression) -> None:
    if isinstance(node, cst.BinaryOperation):
        module.settled.add(node.left)
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        module.settled.update((node.func, node.func.value))


def _is_prose(module: Module, node: cst.BaseExpression) -> bool:
    """Whether the string is a docstring or the like, which nothing reads."""
    return isinstance(module.syntax.parent(node), cst.Expr)
