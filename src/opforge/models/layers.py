"""The hub's rules for a kernel's layer: it is a `forward` for modules whose parameters and state stay their own."""

from __future__ import annotations

import inspect
from typing import Any

ALLOWED = ("forward", "has_backward", "can_torch_compile")
KINDS = "its parameters must be as many and of the same kinds"


def problem(layer: type, original: type) -> str:
    """Returns why a kernel's layer cannot take the place of a class's `forward`, or an empty text."""
    from torch import nn

    if not issubclass(layer, nn.Module):
        return "it is not a subclass of torch.nn.Module"
    own = [kind for kind in layer.__mro__ if kind not in nn.Module.__mro__]
    members = {name: value for kind in own for name, value in vars(kind).items()}
    if "__init__" in members or "__new__" in members:
        return "it has a constructor: its state would not be the model's"
    if state := sorted(name for name in members if name not in ALLOWED and not _is_pythons(name)):
        return f"it has {', '.join(state)}: a layer has {', '.join(ALLOWED)} alone"
    if "forward" not in members:
        return "it has no forward"
    for name in ALLOWED[1:]:
        if not isinstance(getattr(layer, name, True), bool):
            return f"its {name} is {getattr(layer, name)!r}, and neither True nor False"
    mine, theirs = _parameters(members["forward"]), _parameters(getattr(original, "forward"))  # noqa: B009
    if _kinds(mine) == _kinds(theirs):
        return ""
    return f"its forward has the parameters {_shown(mine)}, and the original's {_shown(theirs)}: {KINDS}"


def has_backward(layer: type) -> bool:
    """Returns whether gradients pass through a kernel's layer."""
    return bool(getattr(layer, "has_backward", True))


def can_compile(layer: type) -> bool:
    """Returns whether torch.compile traces a kernel's layer."""
    return bool(getattr(layer, "can_torch_compile", False))


def _is_pythons(name: str) -> bool:
    return (name.startswith("__") and name.endswith("__")) or name in ("_abc_impl",)


def _parameters(function: Any) -> list[inspect.Parameter]:
    """Returns the parameters of a forward but the module."""
    return list(inspect.signature(function).parameters.values())[1:]


def _kinds(parameters: list[inspect.Parameter]) -> list[tuple[Any, bool]]:
    """Returns the properties of parameters that must be equal in two forwards: kinds, and which have a default."""
    return [(part.kind, part.default is part.empty) for part in parameters]


def _shown(parameters: list[inspect.Parameter]) -> str:
    """Returns the parameters by name, as they are declared, without types."""
    bare = [part.replace(annotation=part.empty) for part in parameters]
    return str(inspect.Signature(bare))
