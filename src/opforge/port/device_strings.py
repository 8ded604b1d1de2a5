"""Parses expressions that spell a device: `'cuda:1'`, `f'cuda:{i}'`, `'cuda:%d' % i`, `torch.device('cuda', i)`."""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from .vendors import DEVICE, VENDORS

LITERALS = cst.SimpleString | cst.ConcatenatedString
"""String literals whose value is known without running the code."""


class DeviceString(NamedTuple):
    """A device as an expression spells it."""

    vendor: str
    device_index: cst.BaseExpression | None
    """The index as an expression; None if the device has none."""


def literal_value(node: cst.BaseExpression) -> str | None:
    """Returns the value of a string literal; None for bytes and other expressions."""
    value = node.evaluated_value if isinstance(node, LITERALS) else None
    return value if isinstance(value, str) else None


def parse_device_string(node: cst.BaseExpression) -> DeviceString | None:
    """Returns the device that a string expression spells; None if it spells none."""
    if isinstance(node, LITERALS):
        match = DEVICE.fullmatch(literal_value(node) or "")
        if match is None:
            return None
        vendor, index = match.groups()
        return DeviceString(vendor, None if index is None else cst.Integer(str(int(index))))
    if isinstance(node, cst.FormattedString):
        return _parse_fstring(node)
    if isinstance(node, cst.BinaryOperation):
        return _parse_operation(node)
    if isinstance(node, cst.Call):
        return _parse_format_call(node)
    return None


def _vendor_before(text: object, ending: str) -> str | None:
    """Returns the vendor of a text such as "cuda:%d", whose ending is ":%d"; None if it is no such text."""
    if not isinstance(text, str) or not text.endswith(ending):
        return None
    vendor = text.removesuffix(ending)
    return vendor if vendor in VENDORS else None


def _parse_fstring(node: cst.FormattedString) -> DeviceString | None:
    """Parses `f'cuda:{i}'`."""
    if len(node.parts) != 2:
        return None
    head, value = node.parts
    if not isinstance(head, cst.FormattedStringText) or not isinstance(value, cst.FormattedStringExpression):
        return None
    is_plain = value.conversion is None and value.format_spec is None and value.equal is None
    # `{1, 2}` formats one tuple, but would become two arguments of a call.
    is_plain = is_plain and not isinstance(value.expression, cst.Tuple)
    vendor = _vendor_before(head.value, ":")
    return DeviceString(vendor, value.expression) if is_plain and vendor else None


def _parse_operation(node: cst.BinaryOperation) -> DeviceString | None:
    """Parses `'cuda:%d' % i` and `'cuda:' + str(i)`."""
    if not isinstance(node.left, cst.SimpleString):
        return None
    text, right = node.left.evaluated_value, node.right
    if isinstance(node.operator, cst.Modulo):
        vendor = _vendor_before(text, ":%d") or _vendor_before(text, ":%s") or _vendor_before(text, ":%i")
        if isinstance(right, cst.Tuple):
            if len(right.elements) != 1 or not isinstance(right.elements[0], cst.Element):
                return None
            right = right.elements[0].value
        return DeviceString(vendor, right) if vendor else None
    if isinstance(node.operator, cst.Add):
        vendor = _vendor_before(text, ":")
        if vendor and isinstance(right, cst.Call) and isinstance(right.func, cst.Name) and right.func.value == "str":
            (index, *others) = right.args or (None,)
            if index is not None and not others and not index.star and index.keyword is None:
                return DeviceString(vendor, index.value)
    return None


def _parse_format_call(node: cst.Call) -> DeviceString | None:
    """Parses `'cuda:{}'.format(i)`."""
    function = node.func
    if not isinstance(function, cst.Attribute) or function.attr.value != "format" or len(node.args) != 1:
        return None
    argument = node.args[0]
    if not isinstance(function.value, cst.SimpleString) or argument.star or argument.keyword is not None:
        return None
    text = function.value.evaluated_value
    vendor = _vendor_before(text, ":{}") or _vendor_before(text, ":{0}")
    return DeviceString(vendor, argument.value) if vendor else None


def parse_device_call(node: cst.Call) -> DeviceString | None:
    """Returns the device that the arguments of `torch.device(...)` spell; None if they spell none.

    The arguments are one string, or a string and an index.
    """
    positions = {"type": 0, "device": 0, "index": 1}
    values: dict[int, cst.BaseExpression] = {}
    for number, argument in enumerate(node.args):
        position = number if argument.keyword is None else positions.get(argument.keyword.value, 2)
        if argument.star or position > 1 or position in values:
            return None
        values[position] = argument.value
    device = parse_device_string(values[0]) if 0 in values else None
    if device is None or 1 not in values:
        return device
    return DeviceString(device.vendor, values[1]) if device.device_index is None else None


def parse_device(node: cst.BaseExpression) -> DeviceString | None:
    """Returns the device of a string, or of a call that is known to be one of torch.device; None if there is none."""
    return parse_device_string(node) or (parse_device_call(node) if isinstance(node, cst.Call) else None)
