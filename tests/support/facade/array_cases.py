"""Uses of arrays_source.cpp. What torch's own headers gave is recorded in array_outcomes.json.

`python tests/support/facade/array_cases.py LIBRARY` prints what a library gives. To record it anew, compile the source
with torch's headers, as the extension facade_arrays, without NDEBUG: texts of errors would lack the names of types.
"""

import array
import contextlib
import gc
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

NAME = "facade_arrays"


def _plain(value: object) -> object:
    """Returns a value with its arrays as their dtype, sizes, strides, flags and bytes."""
    if isinstance(value, np.ndarray):
        flags = [value.flags.c_contiguous, value.flags.f_contiguous, value.flags.writeable, value.flags.owndata]
        content = repr(value.tolist()) if value.dtype == object else value.tobytes().hex()
        return ["array", value.dtype.str, list(value.shape), list(value.strides), flags, content]
    if isinstance(value, np.dtype):
        return ["dtype", value.str, value.num]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(_plain, value)]
    return value


def _changed(m: ModuleType, values: np.ndarray) -> object:
    found = m.doubled(values)
    return found, values, found is values


def _runs(m: ModuleType) -> object:
    before = m.freed()
    with contextlib.suppress(TypeError):
        m.nothing(1)
    return m.freed() - before


def _kept(m: ModuleType) -> object:
    before = m.freed()
    found = m.kept()
    total, during = found.sum(), m.freed()
    del found
    gc.collect()
    return float(total), during - before, m.freed() - before


def _written(m: ModuleType, buffer: bytearray) -> object:
    return m.written(buffer), bytes(buffer)


def _part(m: ModuleType) -> object:
    values = np.arange(4.0)
    found = m.part(values)
    values[1] = 9
    return found, found.base is values


def cases(m: ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields the name of each case, and the case."""
    doubles = np.arange(6.0).reshape(2, 3)
    frozen = np.arange(3, dtype=np.float32)
    frozen.flags.writeable = False
    things = {
        "doubles": doubles, "transposed": doubles.T, "strided": np.arange(20.0)[::3], "int32": np.arange(3, dtype="i4"),
        "int64": np.arange(4).reshape(2, 2), "bool": np.array([True, False]), "float16": np.ones(2, "f2"),
        "complex": np.array([1 + 2j]), "big-endian": np.array([1, 2], ">i4"), "0-dim": np.array(2.5),
        "empty": np.zeros((0, 3)), "ones": np.zeros((1, 4, 1))[:, ::2], "frozen": frozen, "text": np.array(["a"]),
        "objects": np.array([None, 1]), "subclass": np.matrix([[1.0, 2.0]]), "list": [1, 2.5], "nested": [[1], [2]],
        "ragged": [[1], [2, 3]], "number": 3, "none": None, "string": "text", "bytes": b"bytes",
        "bytearray": bytearray(b"ab"), "memory": memoryview(doubles), "array": array.array("d", [1, 2]),
        "tensor": torch.arange(3.0), "records": np.zeros(2, [("a", "i4"), ("b", "f8")]), "dtype": np.dtype("i2"),
    }  # fmt: skip
    functions = ("any", "doubles", "contiguous", "fortran", "strict", "overloaded", "bools", "bytes_of", "complexes",
                 "of_object", "ensured", "kinds", "info", "of_info", "same")  # fmt: skip
    for function in functions:
        for name, thing in things.items():
            if function == "any" and name in ("text", "objects", "records"):
                continue  # a buffer of text is refused, and an array's strides are its own
            yield f"{function}({name})", lambda f=function, thing=thing: getattr(m, f)(thing)
    for name in ("doubles", "int64", "int32", "0-dim", "strided", "nested"):
        yield f"sum({name})", lambda thing=things[name]: m.sum(thing)
    yield "several", lambda: m.several([doubles, frozen], [1, 2])
    yield "several of nothing", lambda: m.several([], None)
    yield "several with a list", lambda: m.several([[1]], None)
    for at in ((1, 2), (0, 0), (2, 0), (0, 3), (-1, 0)):
        if at[0] >= 0:
            yield f"at{at}", lambda at=at: m.at(doubles, *at)
    yield "at one of two", lambda: m.at_one(doubles, 1)
    yield "item at", lambda: m.item_at(np.zeros((2, 3, 4)), 1, 2, 3)
    yield "item at too many", lambda: m.item_at(doubles, 1, 2, 3)
    yield "axis", lambda: (m.axis(doubles, 1), m.axis(doubles.T, 0))
    yield "axis behind", lambda: m.axis(doubles, 2)
    yield "set", lambda: m.set(np.zeros(2), 1, 3.5)
    yield "set of integers", lambda: m.set(np.zeros(2, int), 1, 3.5)
    yield "set behind", lambda: m.set(np.zeros(2), 2, 1)
    yield "set of another dimension", lambda: m.set(np.zeros((2, 2)), 0, 1)
    yield "doubled", lambda: _changed(m, np.arange(3, dtype=np.float32))
    yield "doubled, converted", lambda: _changed(m, np.arange(3.0))
    yield "doubled, frozen", lambda: _changed(m, frozen)
    yield "three", lambda: m.three(np.zeros((1, 1, 1)))
    yield "three of two", lambda: m.three(np.zeros((1, 1)))
    yield "made", lambda: [part if i in (0, 3, 4, 7) else part[:6] for i, part in enumerate(m.made())]
    yield "kept", lambda: _kept(m)
    yield "part", lambda: _part(m)
    yield "base", lambda: (m.base(doubles), m.base(doubles.T.base))
    yield "nothing", lambda: m.nothing(1)
    yield "nothing runs once", lambda: _runs(m)
    for function in ("nothings", "no_handle", "no_array"):
        yield function, getattr(m, function)
    yield "squeezed", lambda: m.squeezed(np.zeros((1, 2, 1)))
    yield "reshaped", lambda: m.reshaped(doubles, [3, 2])
    yield "reshaped wrongly", lambda: m.reshaped(doubles, [4])
    yield "viewed", lambda: m.viewed(np.arange(2, dtype="i4"), "f4")
    yield "viewed wrongly", lambda: m.viewed(np.arange(2, dtype="i4"), "no type")
    yield "resized", lambda: (m.resized(4), m.resized(2))
    yield "dtypes", m.dtypes
    yield "named", lambda: (m.named("f8"), m.named("i2,i4"))
    yield "named wrongly", lambda: m.named("no type")
    yield "written", lambda: _written(m, bytearray(b"abc"))
    yield "written into bytes", lambda: m.written(b"abc")
    yield "own info", m.own_info
    yield "bad info", lambda: m.bad_info(2)
    yield "good info", lambda: m.bad_info(1)
    yield "capsule", lambda: m.counted(m.capsule())
    yield "no capsule", lambda: m.counted(3)
    yield "from a tensor", lambda: m.from_tensor(torch.arange(6.0).view(2, 3))
    yield "to a tensor", lambda: m.to_tensor(np.arange(3, dtype=np.float32)[::2])
    yield "to a tensor of doubles", lambda: m.to_tensor(np.arange(3.0))
    yield "behind pointers", lambda: m.tensor_behind(torch.arange(3.0), 2, [1, 0.5])
    yield "none behind pointers", lambda: m.tensor_behind(None, 2, [1])
    yield "no number behind a pointer", lambda: m.tensor_behind(torch.arange(3.0), None, [1])
    for function in (*functions[:8], "several", "part", "capsule", "counted", "same", "tensor_behind", "written"):
        yield f"documentation of {function}", lambda f=function: getattr(m, f).__doc__


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from facade.module_record import load
    from facade.outcomes import of_call

    module = load(Path(sys.argv[1]), NAME)
    found = {name: of_call(lambda case=case: _plain(case())) for name, case in cases(module)}
    print(re.sub(r"0x[0-9a-f]+", "0x", json.dumps(found)))
