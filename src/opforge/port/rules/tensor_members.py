"""Ties by a tensor's or a module's members: `x.cuda()`, `x.is_cuda`, `x.pin_memory()`, `pin_memory=True`."""

from __future__ import annotations

import libcst as cst

from opforge.port.conversions import in_parentheses_of, with_keyword
from opforge.port.matching import device_of, settle_spelling, spelt_anyhow
from opforge.port.positions import is_number
from opforge.port.ties import Module
from opforge.port.vendors import MOVES, VENDORS

from .vendor_names import is_current_device, is_target

QUESTIONS = {f"is_{vendor}": vendor for vendor in VENDORS}
OWN = "a class of this module has a member of that name, so whose it is here is not known"
ORDER = ("device", "non_blocking", "memory_format")
"""The arguments of the methods that move."""


def look_at_call(module: Module, call: cst.Call) -> bool:
    """Look at a call of a method; whether all of it but its parts is settled."""
    function = call.func
    if not isinstance(function, cst.Attribute):
        return False
    name = function.attr.value
    if name in MOVES:
        why = _whose(module, function)
        if why is None:
            return False
        module.settled.add(function)
        if why:
            module.leave(call, name, why)
        else:
            _move(module, call, name)
        return True
    if name in QUESTIONS and _whose(module, function) is not None:
        module.settled.add(function)
        module.leave(call, QUESTIONS[name], "called, so it is not a tensor's is_" + QUESTIONS[name])
        return True
    if name == "pin_memory":
        return _pinned(module, call, function)
    return False


def look_at_attribute(module: Module, node: cst.Attribute) -> bool:
    """Look at `x.is_cuda`; whether it was that."""
    vendor = QUESTIONS.get(node.attr.value)
    why = None if vendor is None or is_target(module, node) else _whose(module, node)
    if vendor is None or why is None:
        return False
    if not why and isinstance(node.value, cst.Name) and node.value.value in ("self", "cls"):
        why = "whether self is a tensor is not known"
    if why:
        module.leave(node, vendor, why)
        return True

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Attribute)
        return in_parentheses_of(old, module.write.call("on_accelerator", old.value))

    module.convert(node, vendor, convert, asks=True)
    return True


def look_at_keyword(module: Module, call: cst.Call) -> None:
    """Look for `pin_memory=True` among the arguments of torch's own makers of tensors."""
    meaning = module.syntax.meaning(call.func) or ""
    if meaning.startswith("torch.") and meaning.count(".") == 1:
        for one in call.args:
            pins = one.keyword is not None and one.keyword.value == "pin_memory"
            if pins and isinstance(one.value, cst.Name) and one.value.value == "True":
                module.leave(one, "", "fails where nothing can be pinned: use get_accelerator().pin_empty")


def _whose(module: Module, function: cst.Attribute) -> str | None:
    """Give why the object that has the member is not known to be a tensor or module of torch's; "" where it may be.

    None: it is certainly none, but a package.
    """
    if isinstance(function.value, cst.Name):
        kinds = module.syntax.imports(function.value)
        if kinds == {cst.Import}:
            return None
        if kinds:
            return "an imported name: whether it is a tensor or module of torch's is not seen here"
    if (
        isinstance(function.value, cst.Call)
        and isinstance(function.value.func, cst.Name)
        and function.value.func.value == "super"
    ):
        return "the inherited method is called for its own sake"
    return OWN if function.attr.value in module.own else ""


def _move(module: Module, call: cst.Call, vendor: str) -> None:
    given: dict[str, int] = {}
    for place, one in enumerate(call.args):
        name = one.keyword.value if one.keyword else ORDER[place] if place < 2 else ""
        if one.star or name not in ORDER:
            module.leave(call, vendor, "its arguments do not say which device is meant")
            return
        given[name] = place
    at = given.get("device", -1)
    value = call.args[at].value if at >= 0 else None
    device = device_of(module, value) if value is not None else None
    is_device = value is not None and device is None and _is_device(module, value)
    if value is not None and device is not None:
        settle_spelling(module, value)
    elif value is not None and not is_device and not is_number(module.syntax, value):
        module.leave(call, vendor, "whether the argument is a number or a device is not known: use .to(device)")
        return

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Call) and isinstance(old.func, cst.Attribute)
        return old.with_changes(
            func=old.func.with_changes(attr=cst.Name("to")), args=_arguments(module, old, at, is_device)
        )

    module.convert(call, vendor, convert)


def _arguments(module: Module, call: cst.Call, at: int, is_device: bool) -> list[cst.Arg]:
    """Give the arguments of `.to` from those of `.cuda`, of which number `at` is the device; -1: none is."""
    made = []
    for place, one in enumerate(call.args):
        if place == at:
            value = one.value if is_device else module.write.call("device_name", _number(one.value))
            one = one.with_changes(value=value)
        elif one.keyword is None:  # `.to` has the dtype in its second place
            one = with_keyword(one, ORDER[place])
        made.append(one)
    return made if at >= 0 else [cst.Arg(module.write.call("device_name")), *made]


def _number(value: cst.BaseExpression) -> cst.BaseExpression | None:
    device = spelt_anyhow(value)
    if device is not None:
        return device.number
    return None if isinstance(value, cst.Name) and value.value == "None" else value


def _is_device(module: Module, value: cst.BaseExpression) -> bool:
    """Whether the argument is a device that is converted by itself, or needs no conversion."""
    return is_current_device(module, value) or module.syntax.makes_device(value)


def _pinned(module: Module, call: cst.Call, function: cst.Attribute) -> bool:
    why = _whose(module, function)
    meaning = module.syntax.meaning(function) or ""
    if why is None or meaning == f"{module.write.name}.pin_memory":
        return False
    if isinstance(function.value, cst.Call) and _is_accelerator(module, function.value):
        return False
    module.settled.add(function)
    if why:
        module.leave(call, "", why)
    elif call.args:
        module.leave(call, "", "it names a device, which the interface's pin_memory does not take")
    else:

        def convert(old: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(old, cst.Call) and isinstance(old.func, cst.Attribute)
            return in_parentheses_of(old, module.write.call("pin_memory", old.func.value))

        module.convert(call, "", convert)
    return True


def _is_accelerator(module: Module, call: cst.Call) -> bool:
    return (module.syntax.meaning(call.func) or "").endswith(".get_accelerator")
