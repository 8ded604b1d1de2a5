"""Names below `torch.<vendor>`, called or not, under whatever name they were imported."""

from __future__ import annotations

import libcst as cst

from opforge.port import names
from opforge.port.conversions import DEEPSPEED_MODULES, Convert, in_parentheses_of
from opforge.port.matching import change_arguments, index_note, match_arguments
from opforge.port.positions import Role, is_assigned, role_of, roles_of_variable
from opforge.port.references import Module
from opforge.port.syntax.module import UNBOUND
from opforge.port.syntax.tree import dotted_text

from . import mixed_precision


def visit_call(module: Module, call: cst.Call) -> bool:
    """Visits a call of a vendor's function. Returns whether it was one."""
    qualified = module.syntax.qualified_name(call.func) or ""
    vendor, name = names.short_name(qualified) or ("", "")
    if qualified in names.OUTSIDE_FUNCTIONS and not call.args:
        replace = _replace_function(module, names.OUTSIDE_FUNCTIONS[qualified])
        module.convert(call, qualified.split(".")[2], replace, selects_vendor=True)
    elif name in names.AMP:
        mixed_precision.visit_call(module, call, vendor, name)
    elif name == "current_device" and not call.args:
        _visit_current_device(module, call, vendor)
    elif name in names.RULES:
        _apply_rule(module, call, vendor, name, names.RULES[name])
    elif vendor == "mps" and name in names.MPS_NAMES and not call.args:
        module.convert(call, vendor, _replace_function(module, names.MPS_NAMES[name]))
    elif name in names.GRAPH_CLASSES and not call.args:
        module.convert(call, vendor, _replace_function(module, "create_graph"))
    elif name in names.TENSOR_TYPES:
        if len(call.args) == 1 and isinstance(call.args[0].value, cst.List | cst.ListComp):
            module.convert(call, vendor, _replace_function(module, name))
        else:
            problem = "creates a tensor from sizes or from values: use torch.empty or torch.tensor"
            module.leave(call, vendor, problem)
    else:
        return False
    module.handled.add(call.func)
    return True


def visit_name(module: Module, node: cst.Attribute | cst.Name) -> bool:
    """Visits a name that is not called. Returns whether its parts need no visit."""
    qualified = module.syntax.qualified_name(node)
    if qualified is None:
        return False
    if qualified == UNBOUND:
        vendor_name = names.short_name(dotted_text(node))
        if vendor_name is not None and isinstance(node, cst.Attribute):
            problem = "this module does not import torch, so the name's meaning is unknown"
            module.leave(node, vendor_name[0], problem)
        return vendor_name is not None
    if isinstance(node, cst.Attribute) and qualified in [f"{name}.get_accelerator" for name in DEEPSPEED_MODULES]:
        module.convert(node, "", lambda old: in_parentheses_of(old, module.write.accelerator()))
        return True
    for prefix, vendor in names.VENDOR_PREFIXES.items():
        if qualified == prefix or qualified.startswith(f"{prefix}."):
            module.leave(node, vendor, "the accelerator interface has no counterpart")
            return True
    if qualified in names.GENERAL_NAMES:
        general_name = names.GENERAL_NAMES[qualified]
        module.convert(
            node, "cuda", lambda old: in_parentheses_of(old, module.write.torch_member(general_name)), needs="torch"
        )
        return True
    vendor_name = names.short_name(qualified)
    if vendor_name is None:
        return False
    return _visit_vendor_name(module, node, *vendor_name)


def _visit_vendor_name(module: Module, node: cst.Attribute | cst.Name, vendor: str, name: str) -> bool:
    """Visits `torch.<vendor>.<name>`. Returns whether its parts need no visit."""
    if is_assigned(module.syntax, node):
        module.leave(node, vendor, "it is assigned or deleted here")
        return True
    if isinstance(node, cst.Attribute) and "." in name and _has_rule(name.rpartition(".")[0]):
        return False  # a member of something that has a rule: the inner name is visited by itself
    if name in ("amp.custom_fwd", "amp.custom_bwd"):
        mixed_precision.visit_name(module, node, vendor, name)
    elif name in names.RULES and not names.RULES[name].call_only:
        method = names.RULES[name].method
        module.convert(
            node, vendor, lambda old: in_parentheses_of(old, module.write.member(method)), selects_vendor=True
        )
    else:
        module.leave(node, vendor, _name_problem(name))
    return True


def visit_subscript(module: Module, node: cst.Subscript) -> None:
    """Visits `torch.cuda.default_generators[i]`."""
    vendor_name = names.short_name(module.syntax.qualified_name(node.value))
    if vendor_name is None or vendor_name[1] != "default_generators" or len(node.slice) != 1:
        return
    if not isinstance(node.slice[0].slice, cst.Index) or is_assigned(module.syntax, node):
        return

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Subscript) and isinstance(old.slice[0].slice, cst.Index)
        return in_parentheses_of(old, module.write.call("default_generator", old.slice[0].slice.value))

    module.handled.add(node.value)
    module.convert(node, vendor_name[0], convert)


def visit_properties(module: Module, node: cst.Attribute) -> bool:
    """Visits `torch.cuda.get_device_properties(i).total_memory`. Returns whether it was that."""
    call = node.value
    if node.attr.value not in ("total_memory", "total_mem") or not isinstance(call, cst.Call):
        return False
    vendor_name = names.short_name(module.syntax.qualified_name(call.func))
    if vendor_name is None or vendor_name[1] != "get_device_properties" or len(call.args) > 1:
        return False
    rule = names.Rule("total_memory", (("device", "device_index"),), takes_device=True)
    changes, problem = match_arguments(module, call, rule)
    module.handled.update((call, call.func))
    if problem is not None:
        module.leave(node, vendor_name[0], problem)
        return True

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Attribute) and isinstance(old.value, cst.Call)
        arguments = change_arguments(old.value.args, changes)
        new = old.value.with_changes(func=module.write.member("total_memory"), args=arguments)
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)

    module.convert(node, vendor_name[0], convert, index_note(module, call, rule))
    return True


def _replace_function(module: Module, method: str) -> Convert:
    """Returns the conversion that replaces what is called and keeps the arguments."""

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        return old.with_changes(func=module.write.member(method))

    return convert


def _has_rule(name: str) -> bool:
    return name in names.RULES or name in names.AMP or name in names.GRAPH_CLASSES or name in names.TENSOR_TYPES


def _name_problem(name: str) -> str:
    """Returns why `torch.<vendor>.<name>` cannot be converted if it is not called."""
    if not name:
        return "the module itself: which names are used from it is not visible here"
    if name in names.TENSOR_TYPES:
        return "a tensor type: compare dtype and device instead"
    if name in names.GRAPH_CLASSES or name in names.RULES:
        return "a torch class that is not called here"
    advice = names.ADVICE.get(name)
    return "the accelerator interface has no counterpart" + (f": {advice}" if advice else "")


def _visit_current_device(module: Module, call: cst.Call, vendor: str) -> None:
    """Visits `current_device()`, which becomes a device's name or its index, as its use requires."""
    roles, variable = roles_of_variable(module.syntax, call)
    as_device = [role in (Role.DEVICE, Role.TYPE) for role in roles]
    if role_of(module.syntax, call) is Role.DEVICE or (as_device and all(as_device)):
        module.convert(call, vendor, _replace_function(module, "current_device_name"))
    elif any(as_device):
        problem = f"{variable!r} is used as a device and as something else: use current_device_name() or an index"
        module.leave(call, vendor, problem)
    else:
        module.convert(call, vendor, _replace_function(module, "current_device"))


def _apply_rule(module: Module, call: cst.Call, vendor: str, name: str, rule: names.Rule) -> None:
    changes, problem = match_arguments(module, call, rule)
    if problem is not None:
        module.leave(call, vendor, problem)
        return

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Call)
        arguments = change_arguments(old.args, changes)
        return old.with_changes(func=module.write.member(rule.method), args=arguments)

    note = index_note(module, call, rule)
    module.convert(call, vendor, convert, note, selects_vendor=name in names.VENDOR_QUERIES)
