"""`torch.<vendor>.amp`: mixed precision in a vendor's own form, which torch also offers for every device."""

from __future__ import annotations

import libcst as cst

from opforge.port.conversions import in_parentheses_of, with_keyword, without_comma
from opforge.port.names import AMP
from opforge.port.ties import Module


def look_at_call(module: Module, call: cst.Call, vendor: str, name: str) -> None:
    general, device, order = AMP[name]
    if any(one.star for one in call.args):
        module.leave(
            call, vendor, "its arguments are given by a star, so they cannot be matched with torch's general form"
        )
        return
    last = name.startswith("amp.custom")
    if len([one for one in call.args if one.keyword is None]) > (len(order) or len(call.args)):
        module.leave(call, vendor, "it has more arguments than torch's general form knows")
        return

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Call)
        named = cst.Arg(module.write.call("device_name"))
        func = module.write.general(general)
        if last:
            return old.with_changes(func=func, args=[*without_comma(old.args), with_keyword(named, device)])
        rest = [
            with_keyword(one, order[place]) if one.keyword is None and order else one
            for place, one in enumerate(old.args)
        ]
        return old.with_changes(func=func, args=[named, *rest])

    module.convert(call, vendor, convert, needs="both")


def look_at_name(module: Module, node: cst.Attribute | cst.Name, vendor: str, name: str) -> None:
    general, device, _order = AMP[name]

    def convert(old: cst.CSTNode) -> cst.CSTNode:
        argument = with_keyword(cst.Arg(module.write.call("device_name")), device)
        return in_parentheses_of(old, cst.Call(module.write.general(general), [argument]))

    module.convert(node, vendor, convert, needs="both")
