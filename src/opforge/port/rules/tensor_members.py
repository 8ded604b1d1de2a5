"""Members of tensors and modules: `x.cuda()`, `x.is_cuda`, `x.pin_memory()`, `pin_memory=True`."""

from __future__ import annotations

import libcst as cst

from opforge.port.conversions import in_parentheses_of, with_keyword
from opforge.port.device_strings import parse_device
from opforge.port.matching import device_of, is_current_device, mark_device_handled
from opforge.port.positions import is_assigned, is_integer
from opforge.port.references import Module
from opforge.port.vendors import MOVE_METHODS, VENDORS

PROPERTIES = {f"is_{vendor}": vendor for vendor in VENDORS}
"""Tensors' properties such as `is_cuda`, with their vendors."""

PARAMETERS = ("device", "non_blocking", "memory_format")
"""The parameters of the methods that move, in order."""


def visit_call(module: Module, call: cst.Call) -> bool:
    """Visits a call of a method. Returns whether a rule covers the call; its parts are visited in any case."""
    function = call.func
    if not isinstance(function, cst.Attribute):
        return False
    name = function.attr.value
    if name in MOVE_METHODS:
        if _is_package(module, function.value):
            return False
        module.handled.add(function)
        if (problem := _owner_problem(module, function)) is not None:
            module.leave(call, name, problem)
        else:
            _visit_move(module, call, name)
        return True
    if name in PROPERTIES and not _is_package(module, function.value):
        module.handled.add(function)
        module.leave(call, PROPERTIES[name], "called, so it is not a tensor's is_" + PROPERTIES[name])
        return True
    if name == "pin_memory":
        return _visit_pin_memory(module, call, function)
    return False


def visit_attribute(module: Module, node: cst.Attribute) -> None:
    """Visits `x.is_cuda`."""
    vendor = PROPERTIES.get(node.attr.value)
    if vendor is None or is_assigned(module.syntax, node) or _is_package(module, node.value):
        return
    problem = _owner_problem(module, node)
    if problem is None and isinstance(node.value, cst.Name) and node.value.value in ("self", "cls"):
        problem = "self may or may not be a tensor"
    if problem is not None:
        module.leave(node, vendor, problem)
        return

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Attribute)
        return in_parentheses_of(old, module.write.call("on_accelerator", old.value))

    module.convert(node, vendor, convert, selects_vendor=True)


def visit_keywords(module: Module, call: cst.Call) -> None:
    """Visits `pin_memory=True` among the arguments of torch's functions that create tensors."""
    name = module.syntax.qualified_name(call.func) or ""
    if name.startswith("torch.") and name.count(".") == 1:
        for argument in call.args:
            is_pin_memory = argument.keyword is not None and argument.keyword.value == "pin_memory"
            if is_pin_memory and isinstance(argument.value, cst.Name) and argument.value.value == "True":
                problem = "fails on a device that cannot pin memory: use get_accelerator().pin_empty"
                module.leave(argument, "", problem)


def _is_package(module: Module, owner: cst.BaseExpression) -> bool:
    """Returns whether the object that has the member is certainly a package."""
    return isinstance(owner, cst.Name) and module.syntax.import_kinds(owner) == {cst.Import}


def _owner_problem(module: Module, member: cst.Attribute) -> str | None:
    """Returns why the member's owner may not be a torch tensor or module; None if it is taken for one."""
    owner = member.value
    if isinstance(owner, cst.Name) and module.syntax.import_kinds(owner):
        return "an imported name, which may or may not be a torch tensor or module"
    if isinstance(owner, cst.Call) and isinstance(owner.func, cst.Name) and owner.func.value == "super":
        return "the inherited method is called explicitly"
    if member.attr.value in module.own_members:
        return "a class of this module defines a member of that name, so the owner may not be a tensor"
    return None


def _visit_move(module: Module, call: cst.Call, vendor: str) -> None:
    """Visits `x.cuda(...)`, which becomes `x.to(...)`."""
    numbers: dict[str, int] = {}
    for number, argument in enumerate(call.args):
        name = argument.keyword.value if argument.keyword else PARAMETERS[number] if number < 2 else ""
        if argument.star or name not in PARAMETERS:
            module.leave(call, vendor, "its arguments do not show which device is meant")
            return
        numbers[name] = number
    device_number = numbers.get("device", -1)
    value = call.args[device_number].value if device_number >= 0 else None
    device = device_of(module, value) if value is not None else None
    is_device = value is not None and device is None and _is_device(module, value)
    if value is not None and device is not None:
        mark_device_handled(module, value)
    elif value is not None and not is_device and not is_integer(module.syntax, value):
        module.leave(call, vendor, "the argument may be an index or a device: use .to(device)")
        return

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Call) and isinstance(old.func, cst.Attribute)
        function = old.func.with_changes(attr=cst.Name("to"))
        return old.with_changes(func=function, args=_to_arguments(module, old, device_number, is_device))

    module.convert(call, vendor, convert)


def _to_arguments(module: Module, call: cst.Call, device_number: int, is_device: bool) -> list[cst.Arg]:
    """Returns the arguments of `.to` for those of `.cuda`. Number `device_number` is the device; -1: none is."""
    arguments = []
    for number, argument in enumerate(call.args):
        if number == device_number:
            value = argument.value if is_device else module.write.call("device_name", _index(argument.value))
            argument = argument.with_changes(value=value)
        elif argument.keyword is None:  # the second parameter of `.to` is the dtype
            argument = with_keyword(argument, PARAMETERS[number])
        arguments.append(argument)
    return arguments if device_number >= 0 else [cst.Arg(module.write.call("device_name")), *arguments]


def _index(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """Returns the index that `.cuda(value)` selects; None for the current device."""
    if (device := parse_device(value)) is not None:
        return device.device_index
    return None if isinstance(value, cst.Name) and value.value == "None" else value


def _is_device(module: Module, value: cst.BaseExpression) -> bool:
    """Returns whether the argument is a device that is converted by itself, or that needs no conversion."""
    return is_current_device(module.syntax, value) or module.syntax.is_device_call(value)


def _visit_pin_memory(module: Module, call: cst.Call, function: cst.Attribute) -> bool:
    """Visits `x.pin_memory()`. Returns whether a rule covers the call."""
    qualified = module.syntax.qualified_name(function) or ""
    if _is_package(module, function.value) or qualified == f"{module.write.accelerator_name}.pin_memory":
        return False
    if isinstance(function.value, cst.Call) and _is_get_accelerator(module, function.value):
        return False
    module.handled.add(function)
    problem = _owner_problem(module, function)
    if problem is None and call.args:
        problem = "it names a device, and the interface's pin_memory takes none"
    if problem is not None:
        module.leave(call, "", problem)
        return True

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Call) and isinstance(old.func, cst.Attribute)
        return in_parentheses_of(old, module.write.call("pin_memory", old.func.value))

    module.convert(call, "", convert)
    return True


def _is_get_accelerator(module: Module, call: cst.Call) -> bool:
    return (module.syntax.qualified_name(call.func) or "").endswith(".get_accelerator")
