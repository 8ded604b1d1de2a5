"""Matches a call's arguments with the interface's parameters: renames keywords, replaces devices by their indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import libcst as cst

from .conversions import without_last_comma
from .device_strings import DeviceString, parse_device, parse_device_call, parse_device_string
from .names import Rule, short_name
from .positions import is_integer
from .references import Module
from .syntax.module import Syntax

INDEX_NOTE = "takes a device index: if this is a torch.device, pass its .index"


class ArgumentChange(NamedTuple):
    """The conversion of one argument: its new keyword, whether its value becomes an index, whether it is removed."""

    keyword: str | None
    to_index: bool
    removed: bool


def match_arguments(module: Module, call: cst.Call, rule: Rule) -> tuple[list[ArgumentChange], str | None]:
    """Returns the change of each argument, and the reason why the call cannot be converted, or None."""
    if rule.parameters is None:
        keywords = [argument.keyword.value if argument.keyword else None for argument in call.args]
        return [ArgumentChange(keyword, False, False) for keyword in keywords], None
    changes: list[ArgumentChange] = []
    new_names = dict(rule.parameters)
    for number, argument in enumerate(call.args):
        if argument.star:
            return [], "it has * or ** arguments, which cannot be matched with the interface's"
        if argument.keyword is not None:
            name = argument.keyword.value
        else:
            name = rule.parameters[number][0] if number < len(rule.parameters) else ""
        if name not in new_names:
            return (
                [],
                f"the interface's {rule.method} has no counterpart of the argument {name or f'number {number + 1}'}",
            )
        is_device = rule.takes_device and name == rule.parameters[-1][0]
        device = device_of(module, argument.value) if is_device else None
        if device is not None and device.device_index is None and rule.index_required:
            return [], "the device has no index, so which device to set is unknown"
        removed = device is not None and device.device_index is None
        keyword = new_names[name] if argument.keyword else None
        changes.append(ArgumentChange(keyword, device is not None and not removed, removed))
        if device is not None:
            mark_device_handled(module, argument.value)
    return changes, None


def change_arguments(arguments: Sequence[cst.Arg], changes: Sequence[ArgumentChange]) -> list[cst.Arg]:
    """Returns the new arguments."""
    changed = []
    for argument, change in zip(arguments, changes, strict=True):
        if change.removed:
            continue
        if change.keyword is not None:
            argument = argument.with_changes(keyword=cst.Name(change.keyword))
        if change.to_index:
            device = parse_device(argument.value)
            assert device is not None and device.device_index is not None
            argument = argument.with_changes(value=device.device_index)
        changed.append(argument)
    return changed if len(changed) == len(arguments) else without_last_comma(changed)


def index_note(module: Module, call: cst.Call, rule: Rule) -> str:
    """Returns the note for a call whose argument must be an index and may be a torch.device; "" for other calls."""
    if not rule.uses_index or not call.args:
        return ""
    value = call.args[0].value
    is_index = is_integer(module.syntax, value) or device_of(module, value) is not None
    return "" if is_index else INDEX_NOTE


def device_of(module: Module, node: cst.BaseExpression) -> DeviceString | None:
    """Returns the device that a string or a call of torch.device spells; None if there is none."""
    return parse_device_call(node) if module.syntax.is_device_call(node) else parse_device_string(node)


def is_current_device(syntax: Syntax, node: cst.BaseExpression | None) -> bool:
    """Returns whether the expression is a vendor's `current_device()`."""
    if not isinstance(node, cst.Call) or node.args:
        return False
    vendor_name = short_name(syntax.qualified_name(node.func))
    return vendor_name is not None and vendor_name[1] == "current_device"


def mark_device_handled(module: Module, node: cst.CSTNode) -> None:
    """Marks the strings that spell a device as handled, but not the expression of its index."""
    module.handled.add(node)
    if module.syntax.is_device_call(node):
        for argument in node.args[:1]:
            mark_device_handled(module, argument.value)
    elif isinstance(node, cst.BinaryOperation):
        module.handled.add(node.left)
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        module.handled.add(node.func.value)
