"""Expressions that spell a device: `'cuda'`, `'cuda:1'`, `f'cuda:{i}'`, `'cuda:%d' % i`, `torch.device('cuda', i)`."""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from opforge.port.vendors import DEVICE, VENDORS


class Spelt(NamedTuple):
    """A device as an expression spells it."""

    vendor: str
    number: cst.BaseExpression | None
    """Its number, as an expression; None where none is given."""


def spelt(node: cst.BaseExpression) -> Spelt | None:
    """Give the device that a string expression spells; None where it spells none."""
    if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
        text = node.evaluated_value
        found = DEVICE.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            return None
        vendor, number = found.groups()
        return Spelt(vendor, None if number is None else cst.Integer(str(int(number))))
    if isinstance(node, cst.FormattedString):
        return _formatted(node)
    if isinstance(node, cst.BinaryOperation):
        return _joined(node)
    if isinstance(node, cst.Call):
        return _format_call(node)
    return None


def _vendor_before(text: object, ending: str) -> str | None:
    """Give the vendor of "cuda:%d" with the ending ":%d"."""
    if not isinstance(text, str) or not text.endswith(ending):
        return None
    vendor = text.removesuffix(ending)
    return vendor if vendor in VENDORS else None


def _formatted(node: cst.FormattedString) -> Spelt | None:
    if len(node.parts) != 2:
        return None
    head, value = node.parts
    if not isinstance(head, cst.FormattedStringText) or not isinstance(value, cst.FormattedStringExpression):
        return None
    plain = value.conversion is None and value.format_spec is None and value.equal is None
    plain = plain and not isinstance(value.expression, cst.Tuple)  # {1, 2} is one value there, two arguments in a call
    vendor = _vendor_before(head.value, ":")
    return Spelt(vendor, value.expression) if plain and vendor else None


def _joined(node: cst.BinaryOperation) -> Spelt | None:
    """`'cuda:%d' % i` and `'cuda:' + str(i)`."""
    if not isinstance(node.left, cst.SimpleString):
        return None
    text, right = node.left.evaluated_value, node.right
    if isinstance(node.operator, cst.Modulo):
        vendor = _vendor_before(text, ":%d") or _vendor_before(text, ":%s") or _vendor_before(text, ":%i")
        if isinstance(right, cst.Tuple):
            if len(right.elements) != 1 or not isinstance(right.elements[0], cst.Element):
                return None
            right = right.elements[0].value
        return Spelt(vendor, right) if vendor else None
    if isinstance(node.operator, cst.Add):
        vendor = _vendor_before(text, ":")
        if vendor and isinstance(right, cst.Call) and isinstance(right.func, cst.Name) and right.func.value == "str":
            (number, *others) = right.args or (None,)
            if number is not None and not others and not number.star and number.keyword is None:
                return Spelt(vendor, number.value)
    return None


def _format_call(node: cst.Call) -> Spelt | None:
    """`'cuda:{}'.format(i)`."""
    function = node.func
    if not isinstance(function, cst.Attribute) or function.attr.value != "format" or len(node.args) != 1:
        return None
    argument = node.args[0]
    if not isinstance(function.value, cst.SimpleString) or argument.star or argument.keyword is not None:
        return None
    text = function.value.evaluated_value
    vendor = _vendor_before(text, ":{}") or _vendor_before(text, ":{0}")
    return Spelt(vendor, argument.value) if vendor else None


def device_argument(node: cst.Call) -> Spelt | None:
    """Give the device of the arguments of `torch.device(...)`: one string, or a string and a number."""
    given = {"type": 0, "device": 0, "index": 1}
    found: dict[int, cst.BaseExpression] = {}
    for place, argument in enumerate(node.args):
        at = place if argument.keyword is None else given.get(argument.keyword.value, 2)
        if argument.star or at > 1 or at in found:
            return None
        found[at] = argument.value
    device = spelt(found[0]) if 0 in found else None
    if device is None or 1 not in found:
        return device
    return Spelt(device.vendor, found[1]) if device.number is None else None
