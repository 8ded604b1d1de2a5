"""The use of an expression in the code around it: as a device, a device type, a backend's name, a device index."""

from __future__ import annotations

import enum

import libcst as cst

from .names import RULES, short_name
from .syntax.module import Syntax
from .syntax.scopes import Variable
from .syntax.tree import last_name
from .vendors import MOVE_METHODS


class Role(enum.Enum):
    """The use of a value."""

    DEVICE = "a device"
    TYPE = "a device type, without an index"
    BACKEND = "the name of a communication backend"
    INDEX = "a device index"


KEYWORDS = {"device": Role.DEVICE, "map_location": Role.DEVICE, "device_type": Role.TYPE}
"""Keyword arguments that have one meaning in all code that uses torch."""

BACKEND_KEYWORDS = ("backend", "dist_backend")
GROUP_FUNCTIONS = ("init_process_group", "new_group", "init_distributed")
"""Functions in which an argument of those names is a backend of torch.distributed."""

ARGUMENTS = {
    "torch.device": (0, Role.DEVICE),
    "torch.set_default_device": (0, Role.DEVICE),
    "torch.get_device_module": (0, Role.DEVICE),
    "torch.Generator": (0, Role.DEVICE),
    "torch.load": (1, Role.DEVICE),
    "torch.amp.GradScaler": (0, Role.TYPE),
    "torch.autocast": (0, Role.TYPE),
    "torch.amp.autocast": (0, Role.TYPE),
    "torch.amp.is_autocast_available": (0, Role.TYPE),
    "torch.is_autocast_enabled": (0, Role.TYPE),
    "torch.get_autocast_dtype": (0, Role.TYPE),
    "torch.set_autocast_dtype": (0, Role.TYPE),
    "torch.set_autocast_enabled": (0, Role.TYPE),
    "torch.distributed.init_device_mesh": (0, Role.TYPE),
    "torch.distributed.device_mesh.init_device_mesh": (0, Role.TYPE),
    "torch.distributed.device_mesh.DeviceMesh": (0, Role.TYPE),
}
"""torch functions: the position and the role of one of their positional arguments."""

INTEGER_FUNCTIONS = frozenset(
    {"int", "len", "current_device", "device_count", "get_rank", "get_local_rank", "get_node_local_rank"}
)
ARITHMETIC = (cst.Add, cst.Subtract, cst.Multiply, cst.FloorDivide, cst.Modulo)


def role_of(syntax: Syntax, node: cst.BaseExpression, comparisons: bool = True) -> Role | None:
    """Returns the role of an expression, also through `a if x else b` and `a or b`; None if it is unknown.

    `comparisons`: whether a comparison with a device shows a role.
    """
    child, parent = _outermost(syntax, node)
    if isinstance(parent, cst.Arg):
        call = syntax.parent(parent)
        return _role_of_argument(syntax, call, parent) if isinstance(call, cst.Call) else None
    if not comparisons:
        return None
    if isinstance(parent, cst.ComparisonTarget):
        comparison = syntax.parent(parent)
        if isinstance(comparison, cst.Comparison):
            return _role_in_comparison(syntax, comparison, comparison.left)
    if isinstance(parent, cst.Comparison) and child is parent.left:
        return _role_in_comparison(syntax, parent, parent.comparisons[0].comparator)
    return None


def _outermost(syntax: Syntax, node: cst.CSTNode) -> tuple[cst.CSTNode, cst.CSTNode | None]:
    """Returns the outermost expression whose value may be this one's, and its parent."""
    child, parent = node, syntax.parent(node)
    while (isinstance(parent, cst.IfExp) and child is not parent.test) or isinstance(parent, cst.BooleanOperation):
        child, parent = parent, syntax.parent(parent)
    return child, parent


def roles_of_variable(syntax: Syntax, node: cst.BaseExpression) -> tuple[list[Role | None], str]:
    """Returns the role of each use of the variable that holds the expression, and the variable's name.

    The variable is assigned the expression or has it as its default. No roles and "" if there is none.
    """
    child, parent = _outermost(syntax, node)
    target: cst.CSTNode | None = None
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
        target = parent.targets[0].target
    elif isinstance(parent, cst.AnnAssign):
        target = parent.target
    elif isinstance(parent, cst.Param) and child is parent.default:
        target = parent.name
    if not isinstance(target, cst.Name):
        return [], ""
    variable = syntax.variable(target)
    return (_roles_of_uses(syntax, variable, comparisons=True) if variable else []), target.value


def _roles_of_uses(syntax: Syntax, variable: Variable, comparisons: bool) -> list[Role | None]:
    """Returns the role of each use of a variable."""
    question = ("roles", comparisons)
    if question not in variable.facts:
        variable.facts[question] = [role_of(syntax, use, comparisons) for use in variable.uses]
    roles: list[Role | None] = variable.facts[question]
    return roles


def is_compared(syntax: Syntax, node: cst.BaseExpression) -> bool:
    """Returns whether the expression is one side of a comparison."""
    return isinstance(_outermost(syntax, node)[1], cst.Comparison | cst.ComparisonTarget)


def is_assigned(syntax: Syntax, node: cst.CSTNode) -> bool:
    """Returns whether something is assigned to the node, or the node is deleted."""
    for parent, child in syntax.ancestors(node):
        if isinstance(parent, cst.AssignTarget | cst.Del | cst.AsName):
            return True
        if isinstance(parent, cst.AugAssign | cst.AnnAssign | cst.For | cst.CompFor):
            return parent.target is child
        if not isinstance(parent, cst.Element | cst.StarredElement | cst.Tuple | cst.List):
            return False
    return False


def _role_of_argument(syntax: Syntax, call: cst.Call, argument: cst.Arg) -> Role | None:
    if argument.star:
        return None
    name, qualified = last_name(call.func), syntax.qualified_name(call.func)
    vendor_name = short_name(qualified)
    if vendor_name is not None and vendor_name[1] in RULES and RULES[vendor_name[1]].takes_device:
        return Role.INDEX
    if argument.keyword is not None:
        keyword = argument.keyword.value
        if keyword in BACKEND_KEYWORDS and name in GROUP_FUNCTIONS:
            return Role.BACKEND
        return KEYWORDS.get(keyword)
    position = next((number for number, candidate in enumerate(call.args) if candidate is argument), -1)
    if any(earlier.star for earlier in call.args[:position]):
        return None
    if isinstance(call.func, cst.Attribute) and name in ("to", *MOVE_METHODS) and position == 0:
        return Role.DEVICE
    if name == "init_process_group" and position == 0:
        return Role.BACKEND
    expected, role = ARGUMENTS.get(qualified or "", (-1, None))
    return role if position == expected else None


def _role_in_comparison(syntax: Syntax, comparison: cst.Comparison, other: cst.BaseExpression) -> Role | None:
    """Returns the role of a value that is compared with `other`.

    `x.device.type`, `mesh.device_type` and a variable that is used as a device elsewhere show a role.
    """
    if len(comparison.comparisons) != 1:
        return None
    if not isinstance(comparison.comparisons[0].operator, cst.Equal | cst.NotEqual):
        return None
    if isinstance(other, cst.Attribute):
        if other.attr.value == "device_type":
            return Role.TYPE
        owner = other.value
        is_device = last_name(owner).endswith("device") or syntax.is_device_call(owner)
        return Role.TYPE if other.attr.value == "type" and is_device else None
    if isinstance(other, cst.Name):
        # The variable's other comparisons do not count: their role is what this function decides.
        variable = syntax.variable(other)
        if variable is None:
            return None
        if "is device" not in variable.facts:
            variable.facts["is device"] = Role.DEVICE in _roles_of_uses(syntax, variable, comparisons=False)
        return Role.DEVICE if variable.facts["is device"] else None
    return None


def is_integer(syntax: Syntax, node: cst.BaseExpression, depth: int = 3) -> bool:
    """Returns whether the expression is certainly an integer or None, by its form, annotation or variable's values."""
    if isinstance(node, cst.Integer):
        return True
    if isinstance(node, cst.Call):
        return last_name(node.func) in INTEGER_FUNCTIONS
    if isinstance(node, cst.BinaryOperation):
        sides = (node.left, node.right)
        return isinstance(node.operator, ARITHMETIC) and any(is_integer(syntax, side, depth) for side in sides)
    if isinstance(node, cst.Attribute):
        return node.attr.value == "index" or _is_rank(node.attr.value)
    if not isinstance(node, cst.Name):
        return False
    if node.value == "None" or _is_rank(node.value):
        return True
    variable = syntax.variable(node)
    if variable is None or not depth:
        return False
    question = ("holds integers", depth)
    if question not in variable.facts:
        variable.facts[question] = all(_holds_integer(syntax, binding, depth - 1) for binding in variable.bindings)
    return bool(variable.facts[question])


def _is_rank(name: str) -> bool:
    """Returns whether the name is a rank's: torch uses the word only for the number of a process."""
    return name.lower() == "rank" or name.lower().endswith("_rank")


def _holds_integer(syntax: Syntax, target: cst.CSTNode, depth: int) -> bool:
    if isinstance(target, cst.Param):
        annotation = target.annotation and syntax.code(target.annotation.annotation).replace(" ", "")
        return annotation in ("int", "int|None", "Optional[int]")
    parent = syntax.parent(target)
    if isinstance(parent, cst.AssignTarget):
        statement = syntax.parent(parent)
        return isinstance(statement, cst.Assign) and is_integer(syntax, statement.value, depth)
    if isinstance(parent, cst.For | cst.CompFor):
        return isinstance(parent.iter, cst.Call) and last_name(parent.iter.func) == "range"
    return False
