"""What a place in the code wants: a device, a kind of device, a backend's name; or nothing that is known."""

from __future__ import annotations

import enum

import libcst as cst
from libcst.metadata import Assignment

from .names import RULES, short_name
from .syntax import Syntax, last_name
from .vendors import MOVES


class Want(enum.Enum):
    """What a value is used as."""

    DEVICE = "a device"
    TYPE = "a kind of device, without a number"
    BACKEND = "the name of a communication backend"
    NUMBER = "a device's number"


KEYWORDS = {"device": Want.DEVICE, "map_location": Want.DEVICE, "device_type": Want.TYPE}
"""Arguments that mean the same wherever torch's users write them."""

BACKEND_KEYWORDS = ("backend", "dist_backend")
GROUP_MAKERS = ("init_process_group", "new_group", "init_distributed")
"""Functions whose argument of that name is a backend of torch.distributed."""

ARGUMENTS = {
    "torch.device": (0, Want.DEVICE),
    "torch.set_default_device": (0, Want.DEVICE),
    "torch.get_device_module": (0, Want.DEVICE),
    "torch.Generator": (0, Want.DEVICE),
    "torch.load": (1, Want.DEVICE),
    "torch.amp.GradScaler": (0, Want.TYPE),
    "torch.autocast": (0, Want.TYPE),
    "torch.amp.autocast": (0, Want.TYPE),
    "torch.amp.is_autocast_available": (0, Want.TYPE),
    "torch.is_autocast_enabled": (0, Want.TYPE),
    "torch.get_autocast_dtype": (0, Want.TYPE),
    "torch.set_autocast_dtype": (0, Want.TYPE),
    "torch.set_autocast_enabled": (0, Want.TYPE),
    "torch.distributed.init_device_mesh": (0, Want.TYPE),
    "torch.distributed.device_mesh.init_device_mesh": (0, Want.TYPE),
    "torch.distributed.device_mesh.DeviceMesh": (0, Want.TYPE),
}
"""Functions of torch, and which of their arguments by position is what."""

NUMBER_CALLS = frozenset(
    {"int", "len", "current_device", "device_count", "get_rank", "get_local_rank", "get_node_local_rank"}
)
ARITHMETIC = (cst.Add, cst.Subtract, cst.Multiply, cst.FloorDivide, cst.Modulo)


def wanted(syntax: Syntax, node: cst.BaseExpression, compared: bool = True) -> Want | None:
    """Give what the place wants that the expression stands in, through `a if x else b` and `a or b`.

    `compared`: whether a comparison is such a place.
    """
    held, holder = _place(syntax, node)
    if isinstance(holder, cst.Arg):
        call = syntax.parent(holder)
        return _argument(syntax, call, holder) if isinstance(call, cst.Call) else None
    if not compared:
        return None
    if isinstance(holder, cst.ComparisonTarget):
        comparison = syntax.parent(holder)
        if isinstance(comparison, cst.Comparison):
            return _compared(syntax, comparison, comparison.left)
    if isinstance(holder, cst.Comparison) and held is holder.left:
        return _compared(syntax, holder, holder.comparisons[0].comparator)
    return None


def _place(syntax: Syntax, node: cst.CSTNode) -> tuple[cst.CSTNode, cst.CSTNode | None]:
    """Give the outermost expression that has this one for its value, and what holds it."""
    held, holder = node, syntax.parent(node)
    while (isinstance(holder, cst.IfExp) and held is not holder.test) or isinstance(holder, cst.BooleanOperation):
        held, holder = holder, syntax.parent(holder)
    return held, holder


def wanted_of_name(syntax: Syntax, node: cst.BaseExpression) -> tuple[list[Want | None], str]:
    """Give what each use of the name wants that the expression is assigned to, or is the default of; and the name.

    No use, and no name, where it is assigned to none.
    """
    held, holder = _place(syntax, node)
    target: cst.CSTNode | None = None
    if isinstance(holder, cst.Assign) and len(holder.targets) == 1:
        target = holder.targets[0].target
    elif isinstance(holder, cst.AnnAssign):
        target = holder.target
    elif isinstance(holder, cst.Param) and held is holder.default:
        target = holder.name
    if not isinstance(target, cst.Name):
        return [], ""
    return [wanted(syntax, use) for use in syntax.uses(target)], target.value


def is_compared(syntax: Syntax, node: cst.BaseExpression) -> bool:
    """Whether the expression is one side of a comparison."""
    return isinstance(_place(syntax, node)[1], cst.Comparison | cst.ComparisonTarget)


def _argument(syntax: Syntax, call: cst.Call, argument: cst.Arg) -> Want | None:
    if argument.star:
        return None
    name, meaning = last_name(call.func), syntax.meaning(call.func)
    known = short_name(meaning)
    if known is not None and known[1] in RULES and RULES[known[1]].numbers:
        return Want.NUMBER
    if argument.keyword is not None:
        keyword = argument.keyword.value
        if keyword in BACKEND_KEYWORDS and name in GROUP_MAKERS:
            return Want.BACKEND
        return KEYWORDS.get(keyword)
    place = next((at for at, one in enumerate(call.args) if one is argument), -1)
    if any(one.star for one in call.args[:place]):
        return None
    if isinstance(call.func, cst.Attribute) and name in ("to", *MOVES) and place == 0:
        return Want.DEVICE
    if name == "init_process_group" and place == 0:
        return Want.BACKEND
    at, want = ARGUMENTS.get(meaning or "", (-1, None))
    return want if place == at else None


def _compared(syntax: Syntax, comparison: cst.Comparison, other: cst.BaseExpression) -> Want | None:
    """`x.device.type == 'cuda'`, `mesh.device_type != 'cuda'`, and a name that is used as a device elsewhere."""
    if len(comparison.comparisons) != 1:
        return None
    if not isinstance(comparison.comparisons[0].operator, cst.Equal | cst.NotEqual):
        return None
    if isinstance(other, cst.Attribute):
        if other.attr.value == "device_type":
            return Want.TYPE
        of = other.value
        named = last_name(of).endswith("device")
        return Want.TYPE if other.attr.value == "type" and (named or syntax.makes_device(of)) else None
    if isinstance(other, cst.Name):
        # Comparisons of the name do not count: they are what is being decided.
        uses = (wanted(syntax, use, compared=False) for use in syntax.uses(other))
        return Want.DEVICE if Want.DEVICE in uses else None
    return None


def is_number(syntax: Syntax, node: cst.BaseExpression, depth: int = 3) -> bool:
    """Whether the expression is a whole number, or None, for sure: by its form, its annotation or its name's values."""
    if isinstance(node, cst.Integer):
        return True
    if isinstance(node, cst.Call):
        return last_name(node.func) in NUMBER_CALLS
    if isinstance(node, cst.BinaryOperation):
        sides = (node.left, node.right)
        return isinstance(node.operator, ARITHMETIC) and any(is_number(syntax, side, depth) for side in sides)
    if isinstance(node, cst.Attribute):
        return node.attr.value == "index" or _is_rank(node.attr.value)
    if not isinstance(node, cst.Name):
        return False
    if node.value == "None" or _is_rank(node.value):
        return True
    found = syntax.assignments(node)
    return bool(depth and found) and all(
        isinstance(one, Assignment) and _holds_number(syntax, one.node, depth - 1) for one in found
    )


def _is_rank(name: str) -> bool:
    """A rank is a process's number; torch has no other."""
    return name.lower() == "rank" or name.lower().endswith("_rank")


def _holds_number(syntax: Syntax, target: cst.CSTNode, depth: int) -> bool:
    if isinstance(target, cst.Param):
        kind = target.annotation and syntax.code(target.annotation.annotation).replace(" ", "")
        return kind in ("int", "int|None", "Optional[int]")
    holder = syntax.parent(target)
    if isinstance(holder, cst.AssignTarget):
        statement = syntax.parent(holder)
        return isinstance(statement, cst.Assign) and is_number(syntax, statement.value, depth)
    if isinstance(holder, cst.For | cst.CompFor):
        return isinstance(holder.iter, cst.Call) and last_name(holder.iter.func) == "range"
    return False
