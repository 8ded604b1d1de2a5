"""`torch.<vendor>.amp`: a vendor's form of mixed precision, which torch also offers for every device."""

from __future__ import annotations

import libcst as cst

from opforge.port.conversions import in_parentheses_of, with_keyword, without_last_comma
from opforge.port.names import AMP
from opforge.port.references import Module


def visit_call(module: Module, call: cst.Call, vendor: str, name: str) -> None:
    """Visits a call of `torch.<vendor>.<name>`, where `name` is in AMP."""
    general_name, device_parameter, order = AMP[name]
    if any(argument.star for argument in call.args):
        problem = "it has * or ** arguments, which cannot be matched with those of torch's general form"
        module.leave(call, vendor, problem)
        return
    device_is_last = name.startswith("amp.custom")
    if len([argument for argument in call.args if argument.keyword is None]) > (len(order) or len(call.args)):
        module.leave(call, vendor, "it has more positional arguments than torch's general form")
        return

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Call)
        device = cst.Arg(module.write.call("device_name"))
        function = module.write.torch_member(general_name)
        if device_is_last:
            arguments = [*without_last_comma(old.args), with_keyword(device, device_parameter)]
            return old.with_changes(func=function, args=arguments)
        others = [
            with_keyword(argument, order[number]) if argument.keyword is None and order else argument
            for number, argument in enumerate(old.args)
        ]
        return old.with_changes(func=function, args=[device, *others])

    module.convert(call, vendor, convert, needs="both")


def visit_name(module: Module, node: cst.Attribute | cst.Name, vendor: str, name: str) -> None:
    """Visits `torch.<vendor>.<name>` that is not called, such as a decorator."""
    general_name, device_parameter, _order = AMP[name]

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        argument = with_keyword(cst.Arg(module.write.call("device_name")), device_parameter)
        return in_parentheses_of(old, cst.Call(module.write.torch_member(general_name), [argument]))

    module.convert(node, vendor, convert, needs="both")
