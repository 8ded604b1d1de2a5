"""Calls of the functions of module_source.cpp. What torch's own headers gave is recorded in module_outcomes.json."""

from collections.abc import Callable, Iterator
from types import ModuleType

import numpy
import torch


def cases(m: ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    yield "module", lambda: (m.__doc__, m.number, m.label, m.whole, m.half, m.yes, m.word)
    for values in ((3,), (True, 2.5), (2, float("inf"), False, "a"), (2.0,), (2, 1), (2, 1.0, 1), (2, 1.0, True, b"a")):
        yield f"values{values}", lambda values=values: m.values(*values)
    for name in (
        "scaled",
        "overloaded",
        "keywords",
        "int32",
        "optional",
        "text",
        "nested",
        "table",
        "tuple",
        "dtype",
        "three",
        "complex",
        "nothing",
        "tensors",
        "sizes",
        "values",
    ):
        yield f"documentation of {name}", lambda name=name: getattr(m, name).__doc__
        yield f"name of {name}", lambda name=name: getattr(m, name).__name__
    for arguments, keywords in (
        ((x,), {}),
        ((x, 3), {}),
        ((x,), {"times": 2}),
        ((x, 1.5, 2, True), {}),
        ((), {"x": x, "negate": True}),
        ((), {}),
        ((x,), {"x": x}),
        ((x,), {"unknown": 1}),
        ((None,), {}),
        ((1,), {}),
        ((x, "a"), {}),
        ((x, 1, 2, True, 4), {}),
        ((x, None), {}),
        ((x, 2.0, 1.5), {}),
        ((x, torch.tensor(2.0)), {}),
        (([1.0],), {}),
    ):
        yield f"scaled{arguments}{keywords}", lambda a=arguments, k=keywords: m.scaled(*a, **k)
    for what in (
        "check",
        "plain check",
        "index",
        "value",
        "type",
        "not implemented",
        "argument",
        "AT_ERROR",
        "AT_ASSERTM",
        "dispatch",
        "runtime_error",
        "out_of_range",
        "invalid_argument",
        "domain_error",
        "overflow_error",
        "length_error",
        "bad_alloc",
        "py::value_error",
        "py::type_error",
        "py::index_error",
        "py::key_error",
        "c10::Error",
        "number",
        "",
    ):
        yield f"kind {what}", lambda what=what: m.kind(what)
    values = (
        0,
        1,
        -1,
        2**31 - 1,
        2**31,
        -(2**31) - 1,
        2**63,
        2**64,
        255,
        256,
        1.5,
        2.0,
        True,
        None,
        "a",
        b"a",
        [1],
        (1, 2),
        1j,
        torch.tensor(3),
        torch.tensor(2.5),
        torch.ones(2),
        numpy.int32(5),
        numpy.int64(2**40),
        numpy.uint8(9),
        numpy.float32(1.5),
        numpy.float64(2.5),
        numpy.bool_(True),
        numpy.array(4),
        {},
        {"a": 1},
        {1},
        range(3),
    )
    converted = (
        "int32",
        "int64",
        "uint8",
        "uint64",
        "real",
        "single",
        "flag",
        "text",
        "exact",
        "no_none",
        "optional",
        "optional_text",
        "sum",
        "nested",
        "table",
        "pair",
        "three",
        "set",
        "complex",
        "sizes",
        "overloaded",
        "same",
        "nothing",
        "defined",
        "tensors",
    )
    for name in converted:
        for value in values:
            yield f"{name}({value!r})", lambda name=name, value=value: getattr(m, name)(value)
    yield "int32()", lambda: m.int32()
    yield "text()", lambda: m.text()
    yield "optional()", lambda: m.optional()
    yield "optional_text()", lambda: m.optional_text()
    yield "same is the same", lambda: m.same(x) is x
    yield "a subclass", lambda: type(m.same(torch.nn.Parameter(x))).__name__
    yield "undefined", lambda: m.undefined()
    yield "nested lists", lambda: m.nested([[1, 2], [], (3.5,)])
    yield "a list of tensors", lambda: [part is x for part in m.tensors([x, x])]
    yield "a list with None", lambda: m.tensors([x, None])
    yield "a generator", lambda: m.sum(i for i in range(4))
    yield "dict", lambda: m.table({"a": 1, "b": 2})
    yield "a dict's wrong value", lambda: m.table({"a": "b"})
    yield "pair", lambda: m.pair((1, "b"))
    yield "pair of a list", lambda: m.pair([1, "b"])
    yield "tuple", lambda: m.tuple(x)
    yield "three", lambda: m.three([1, 2, 3])
    yield "bytes", lambda: m.bytes(b"\x00\xff")
    yield "bytes of text", lambda: m.bytes("\u00e9")
    yield "unicode", lambda: m.text("\u4e2d")
    yield "text of bytes", lambda: m.text(b"ab")
    yield "text that is no text", lambda: m.text(b"\xff")
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.uint16, "float", None):
        yield f"dtype({dtype})", lambda dtype=dtype: m.dtype(dtype)
    for device in (torch.device("cpu"), torch.device("cuda", 1), torch.device("meta"), "cpu", None):
        yield f"device({device!r})", lambda device=device: m.device(device)
    for arguments, keywords in (((1,), {}), ((1,), {"b": 3}), ((1, 2), {}), ((), {"a": 4, "b": 5})):
        yield f"keywords{arguments}{keywords}", lambda a=arguments, k=keywords: m.keywords(*a, **k)
    yield "released", lambda: m.released(x)
    yield "released inside", lambda: m.released_inside(x)
    for dim, i in ((0, 1), (1, -1), (2, 0), (0, 5), (-3, 0)):
        yield f"select {dim} {i}", lambda dim=dim, i=i: m.select(x, dim, i)
    for dim in (0, -1, 2, -3):
        yield f"size {dim}", lambda dim=dim: m.size(x, dim)
    yield "size of a number", lambda: m.size(torch.tensor(1.0), 0)
    yield "matmul", lambda: m.matmul(x, x)
    yield "matmul of other shapes", lambda: m.matmul(x, torch.ones(3))
    yield "matmul of other dtypes", lambda: m.matmul(x, x.double())
    yield "row", lambda: m.row(x, 1)
    yield "row out of range", lambda: m.row(x, 2)
    yield "row of a number", lambda: m.row(torch.tensor(1.0), 0)
    yield "item", lambda: m.item(torch.tensor([2.5]))
    yield "item of two", lambda: m.item(x)
    yield "accessor", lambda: m.accessor(x)
    yield "accessor of other dims", lambda: m.accessor(x[0])
    yield "accessor of another dtype", lambda: m.accessor(x.double())
    yield "pointer", lambda: m.pointer(torch.tensor([9]))
    yield "pointer to another dtype", lambda: m.pointer(x)
    yield (
        "gradients",
        lambda: torch.autograd.grad(m.scaled(x.clone().requires_grad_(), 3.0).sum(), [], allow_unused=True),
    )
    yield "requires_grad", lambda: m.scaled(x.clone().requires_grad_(), 3.0).requires_grad
    yield "a meta tensor", lambda: m.scaled(x.to("meta"), 3.0).device
    changed = x.clone().requires_grad_() * 1
    yield "changed in place", lambda: (m.changed(changed) is changed, changed._version, changed.requires_grad)
    yield "a changed leaf", lambda: m.changed(x.clone().requires_grad_())
