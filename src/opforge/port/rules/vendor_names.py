"""Ties by name: `torch.<vendor>.f`, called or not, under whatever name it was imported."""

from __future__ import annotations

import libcst as cst

from opforge.port import names
from opforge.port.conversions import ORIGIN, Convert, in_parentheses_of
from opforge.port.matching import matched, number_note, rewritten
from opforge.port.positions import Want, wanted, wanted_of_name
from opforge.port.syntax import UNKNOWN, dotted
from opforge.port.ties import Module

from . import mixed_precision


def look_at_call(module: Module, call: cst.Call) -> bool:
    """Look at a call of a vendor's function; whether it was one."""
    meaning = module.syntax.meaning(call.func) or ""
    vendor, name = names.short_name(meaning) or ("", "")
    if meaning in names.CHECKS and not call.args:
        module.convert(call, meaning.split(".")[2], _to(module, names.CHECKS[meaning]), asks=True)
    elif name in names.AMP:
        mixed_precision.look_at_call(module, call, vendor, name)
    elif name == "current_device" and not call.args:
        _current_device(module, call, vendor)
    elif name in names.RULES:
        _ruled_call(module, call, vendor, name, names.RULES[name])
    elif vendor == "mps" and name in names.MPS and not call.args:
        module.convert(call, vendor, _to(module, names.MPS[name]))
    elif name in names.GRAPH_CLASSES and not call.args:
        module.convert(call, vendor, _to(module, "create_graph"))
    elif name in names.TENSOR_TYPES:
        if len(call.args) == 1 and isinstance(call.args[0].value, cst.List | cst.ListComp):
            module.convert(call, vendor, _to(module, name))
        else:
            module.leave(call, vendor, "makes a tensor of sizes or of values: say which by torch.empty or torch.tensor")
    else:
        return False
    module.settled.add(call.func)
    return True


def look_at_name(module: Module, node: cst.Attribute | cst.Name) -> bool:
    """Look at a name that is not called; whether all of it is settled."""
    meaning = module.syntax.meaning(node)
    if meaning is None:
        return False
    if meaning == UNKNOWN:
        parts = dotted(node)
        spelling = ".".join(part.value for part in parts or ())
        known = names.short_name(spelling)
        if known is not None and isinstance(node, cst.Attribute):
            module.leave(node, known[0], "this module does not import torch, so what the name means is not known")
        return known is not None
    if meaning in [f"{place}.get_accelerator" for place in ORIGIN] and isinstance(node, cst.Attribute):
        module.convert(node, "", lambda old: in_parentheses_of(old, module.write.accelerator()))
        return True
    for prefix, vendor in names.OTHERS.items():
        if meaning == prefix or meaning.startswith(f"{prefix}."):
            module.leave(node, vendor, "the accelerator interface has no counterpart")
            return True
    if meaning in names.ELSEWHERE:
        general = names.ELSEWHERE[meaning]
        module.convert(node, "cuda", lambda old: in_parentheses_of(old, module.write.general(general)), needs="torch")
        return True
    known = names.short_name(meaning)
    if known is None:
        return False
    vendor, name = known
    if is_target(module, node):
        module.leave(node, vendor, "something is put in its place here")
        return True
    if isinstance(node, cst.Attribute) and "." in name and _has_rule(name.rpartition(".")[0]):
        return False  # a member of something that has a rule: the inner name is looked at by itself
    if name in ("amp.custom_fwd", "amp.custom_bwd"):
        mixed_precision.look_at_name(module, node, vendor, name)
    elif name in names.RULES and not names.RULES[name].called:
        method = names.RULES[name].method
        module.convert(node, vendor, lambda old: in_parentheses_of(old, module.write.member(method)), asks=True)
    else:
        module.leave(node, vendor, _why_left(vendor, name))
    return True


def look_at_subscript(module: Module, node: cst.Subscript) -> bool:
    """Look at `torch.cuda.default_generators[i]`; whether it was that."""
    known = names.short_name(module.syntax.meaning(node.value))
    if known is None or known[1] != "default_generators" or len(node.slice) != 1:
        return False
    if not isinstance(node.slice[0].slice, cst.Index) or is_target(module, node):
        return False

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Subscript) and isinstance(old.slice[0].slice, cst.Index)
        return in_parentheses_of(old, module.write.call("default_generator", old.slice[0].slice.value))

    module.settled.add(node.value)
    module.convert(node, known[0], convert)
    return True


def look_at_properties(module: Module, node: cst.Attribute) -> bool:
    """Look at `torch.cuda.get_device_properties(i).total_memory`; whether it was that."""
    call = node.value
    if node.attr.value not in ("total_memory", "total_mem") or not isinstance(call, cst.Call):
        return False
    known = names.short_name(module.syntax.meaning(call.func))
    if known is None or known[1] != "get_device_properties" or len(call.args) > 1:
        return False
    rule = names.Rule("total_memory", (("device", "device_index"),), numbers=True)
    plan, why = matched(module, call, rule)
    module.settled.update((call, call.func))
    if why:
        module.leave(node, known[0], why)
        return True

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Attribute) and isinstance(old.value, cst.Call)
        inner = old.value
        new = inner.with_changes(func=module.write.member("total_memory"), args=rewritten(inner.args, plan))
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)

    module.convert(node, known[0], convert, number_note(module, call, rule))
    return True


def is_current_device(module: Module, node: cst.BaseExpression | None) -> bool:
    """Whether the expression is a vendor's `current_device()`."""
    if not isinstance(node, cst.Call) or node.args:
        return False
    known = names.short_name(module.syntax.meaning(node.func))
    return known is not None and known[1] == "current_device"


def _to(module: Module, method: str) -> Convert:
    def convert(old: cst.CSTNode) -> cst.CSTNode:
        return old.with_changes(func=module.write.member(method))

    return convert


def _has_rule(name: str) -> bool:
    return name in names.RULES or name in names.AMP or name in names.GRAPH_CLASSES or name in names.TENSOR_TYPES


def _why_left(vendor: str, name: str) -> str:
    if not name:
        return "the module itself: what is taken from it later cannot be seen here"
    if name in names.TENSOR_TYPES:
        return "a type of tensor: compare dtype and device"
    if name in names.GRAPH_CLASSES or name in names.RULES:
        return "a class of torch's own, not called here"
    advice = names.ADVICE.get(name)
    return "the accelerator interface has no counterpart" + (f": {advice}" if advice else "")


def is_target(module: Module, node: cst.CSTNode) -> bool:
    """Whether something is assigned to the node, or it is deleted."""
    for holder, held in module.syntax.ancestors(node):
        if isinstance(holder, cst.AssignTarget | cst.Del | cst.AsName):
            return True
        if isinstance(holder, cst.AugAssign | cst.AnnAssign | cst.For | cst.CompFor):
            return holder.target is held
        if not isinstance(holder, cst.Element | cst.StarredElement | cst.Tuple | cst.List):
            return False
    return False


def _current_device(module: Module, call: cst.Call, vendor: str) -> None:
    uses, name = wanted_of_name(module.syntax, call)
    as_device = [use in (Want.DEVICE, Want.TYPE) for use in uses]
    if wanted(module.syntax, call) is Want.DEVICE or (as_device and all(as_device)):
        module.convert(call, vendor, _to(module, "current_device_name"))
    elif any(as_device):
        module.leave(
            call, vendor, f"{name!r} is used as a device and otherwise: decide on current_device_name() or a number"
        )
    else:
        module.convert(call, vendor, _to(module, "current_device"))


def _ruled_call(module: Module, call: cst.Call, vendor: str, name: str, rule: names.Rule) -> None:
    plan, why = matched(module, call, rule)
    if why:
        module.leave(call, vendor, why)
        return

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Call)
        return old.with_changes(func=module.write.member(rule.method), args=rewritten(old.args, plan))

    module.convert(call, vendor, convert, number_note(module, call, rule), asks=name in names.QUESTIONS)
