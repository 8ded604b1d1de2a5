"""A call's arguments, matched with the interface's: keywords renamed, devices turned into their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import libcst as cst

from .conversions import without_comma
from .names import Rule
from .positions import is_number
from .rules.device_strings import Spelt, device_argument, spelt
from .ties import Module

NUMBER_NOTE = "takes a device's number: where this is a torch.device, pass its .index"


class Planned(NamedTuple):
    """What becomes of one argument: its new keyword, whether it becomes a device's number, whether it goes."""

    keyword: str | None
    number: bool
    dropped: bool


def matched(module: Module, call: cst.Call, rule: Rule) -> tuple[list[Planned], str]:
    """Give what becomes of each argument; or why the call cannot be converted."""
    plan: list[Planned] = []
    if rule.takes is None:
        return [Planned(one.keyword.value if one.keyword else None, False, False) for one in call.args], ""
    ours = dict(rule.takes)
    for place, one in enumerate(call.args):
        if one.star:
            return [], "its arguments are given by a star, so they cannot be matched with the interface's"
        theirs = one.keyword.value if one.keyword else rule.takes[place][0] if place < len(rule.takes) else ""
        if theirs not in ours:
            said = theirs or f"number {place + 1}"
            return [], f"the interface's {rule.method} has no counterpart of the argument {said}"
        is_device = rule.numbers and theirs == rule.takes[-1][0]
        device = device_of(module, one.value) if is_device else None
        if device is not None and device.number is None and rule.required:
            return [], "a device without a number: which one to set is not said"
        dropped = device is not None and device.number is None
        plan.append(Planned(ours[theirs] if one.keyword else None, device is not None and not dropped, dropped))
        if device is not None:
            settle_spelling(module, one.value)
    return plan, ""


def rewritten(arguments: Sequence[cst.Arg], plan: Sequence[Planned]) -> list[cst.Arg]:
    made = []
    for one, planned in zip(arguments, plan, strict=True):
        if planned.dropped:
            continue
        if planned.keyword is not None:
            one = one.with_changes(keyword=cst.Name(planned.keyword))
        if planned.number:
            device = spelt_anyhow(one.value)
            assert device is not None and device.number is not None
            one = one.with_changes(value=device.number)
        made.append(one)
    return made if len(made) == len(arguments) else without_comma(made)


def number_note(module: Module, call: cst.Call, rule: Rule) -> str:
    if not rule.strict or not call.args:
        return ""
    value = call.args[0].value
    known = is_number(module.syntax, value) or device_of(module, value) is not None
    return "" if known else NUMBER_NOTE


def device_of(module: Module, node: cst.BaseExpression) -> Spelt | None:
    """Give the device that a string or a call of torch.device spells."""
    return device_argument(node) if module.syntax.makes_device(node) else spelt(node)


def spelt_anyhow(node: cst.BaseExpression) -> Spelt | None:
    """Give the device of a string, or of a call that is known to be one of torch.device."""
    return spelt(node) or (device_argument(node) if isinstance(node, cst.Call) else None)


def settle_spelling(module: Module, node: cst.CSTNode) -> None:
    """Settle the strings that spell a device, but not the expression of its number."""
    module.settled.add(node)
    if module.syntax.makes_device(node):
        for one in node.args[:1]:
            settle_spelling(module, one.value)
    elif isinstance(node, cst.BinaryOperation):
        module.settled.add(node.left)
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        module.settled.add(node.func.value)
