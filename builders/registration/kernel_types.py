"""Whether the C++ types of kernels fit the schemas of their ops. Imported for kernels that a library cannot judge.

torch calls a boxed kernel with whatever its op's schema says: a kernel with other types would read garbage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from opforge.errors import KernelSchemaError

from .places import path

CPP = {
    "int": "int64_t",
    "float": "double",
    "str": "std::string",
    "Tensor": "torch::stable::Tensor",
    "Device": "torch::stable::Device",
    "Generator": "torch::stable::Generator",
}
"""Type of a schema -> the C++ type that torch's boxing converts it to. Others have the same name in both."""
ENUMS = ("ScalarType", "Layout", "MemoryFormat")
"""Types of schemas whose values torch also passes as the numbers of the enumerators."""
PASSED = ("bool", *CPP, *ENUMS)
"""The types that torch's stable ABI passes."""
KINDS = {
    "TensorType": "Tensor",
    "IntType": "int",
    "SymIntType": "int",
    "FloatType": "float",
    "BoolType": "bool",
    "StringType": "str",
    "DeviceObjType": "Device",
    "GeneratorType": "Generator",
    "ScalarTypeType": "ScalarType",
    "LayoutType": "Layout",
    "MemoryFormatType": "MemoryFormat",
    "NumberType": "Scalar",
}
"""torch's kind of type -> its name in schemas."""
OTHER_TYPE = re.compile(r"<.*\[(?:with )?T = ([^;]*?)(?:;.*)?\]>")
"""A C++ type that boxing does not convert, as g++ and clang print it."""
NUMBERS = re.compile(r"(?:(?:unsigned|signed|long|short|int|char|float|double)\b ?)+|std::complex<.*>|_Float16|__fp16")
"""Numbers whose bytes are not those of the schema's int or float."""
TEXT = re.compile(r"(?:const )?char(?: const)? ?\*")
LINE = "\n      "
STABLE_PREFIX = re.compile(r"\b(?:torch::stable|torch::headeronly|c10)::")


def check(op: str, library: str, schemas: Iterable[str], kernels: Iterable[str], roots: Iterable[Any] = ()) -> None:
    """Raises KernelSchemaError for kernels that do not fit the schemas of their ops.

    `schemas` are those of the library itself. `kernels` are lines of its `opforge_describe`. A kernel of unknown types,
    or for an op that torch does not know yet, is not checked. `roots` are where the sources are.
    """
    import torch

    own = {schema.partition("(")[0]: schema for schema in schemas}
    problems: dict[str, None] = {}  # one function may be registered for several devices
    for line in [line for line in kernels if "\t" in line]:
        name, types, place, function = line.split("\t")
        schema = _schema(torch, own, name)
        if schema is None:
            continue
        if wrong := _differences(schema, own.get(name, ""), types):
            head = f"{function.lstrip('&')} ({path(place, roots)}) for {schema}"
            problems[f"{head}:{''.join(f'{LINE}{text}' for text in wrong)}"] = None
    if problems:
        raise KernelSchemaError(op, library, [*problems])


def _schema(torch: Any, own: Mapping[str, str], name: str) -> Any:
    """Returns torch's FunctionSchema of an op, which this library or another one defines, or None."""
    if name in own:
        try:
            return torch._C.parse_schema(own[name])
        except RuntimeError:
            return None  # torch refuses it when it is registered
    if name.partition("::")[0] in own:
        return None  # of a TORCH_LIBRARY block, which is not listed; an earlier version's may be registered
    base, _, overload = name.partition(".")
    overloads = torch._C._jit_get_schemas_for_operator(base)
    return next((schema for schema in overloads if schema.overload_name == overload), None)


def _differences(schema: Any, text: str, types: str) -> list[str]:
    """Returns the changes that a kernel of these types needs."""
    listed = types.split("|")[:-1]
    separator = listed.index("=")
    arguments, returned = listed[:separator], listed[separator + 1 :]
    wrong = []
    if len(arguments) != len(schema.arguments):
        wrong.append(f"the function takes {_count(arguments, 'argument')}, and the schema {len(schema.arguments)}")
    else:
        for number, (cpp, value) in enumerate(zip(arguments, schema.arguments, strict=True), 1):
            is_index = re.search(rf"\bDeviceIndex\b[^,)]*\b{re.escape(value.name)}\b", text)
            if not (is_index and _spelled(cpp) == "int"):  # an int64_t for torch's parser
                wrong += _difference(f"argument {number}, {value.name},", cpp, _type(value.real_type))
    if len(returned) != len(schema.returns):
        expected = f"; expected {_result([_type(value.real_type) for value in schema.returns])}"
        wrong.append(
            f"the function returns {_count(returned, 'value')}, and the schema {len(schema.returns)}{expected}"
        )
    else:
        for number, (cpp, value) in enumerate(zip(returned, schema.returns, strict=True), 1):
            where = "the returned value" if len(returned) == 1 else f"returned value {number}"
            wrong += _difference(where, cpp, _type(value.real_type))
    return wrong


def _difference(where: str, cpp: str, kind: str) -> Iterator[str]:
    """Yields the problem of a type of the function, `cpp`, for a type of the schema."""
    if _fits(cpp, kind):
        return
    base = kind.rstrip("[]?")
    if base not in PASSED:
        passed = "float or int" if base == "Scalar" else ", ".join(PASSED)
        yield f"{where} is {kind} in the schema, and torch's stable ABI passes no {base}: write {passed} in the schema"
    else:
        instead = "" if "<" in cpp else f", or {cpp} in the schema"
        yield f"{where} is {_spelled(cpp)} in C++ and {kind} in the schema: write {_spelled(kind)}{instead}"


def _fits(cpp: str, kind: str) -> bool:
    """Returns whether torch passes a value of a schema's type unchanged to a C++ type."""
    while cpp[-1] == kind[-1] and cpp[-1] in "]?":  # lists and options on both sides
        length = 1 if cpp[-1] == "?" else 2
        cpp, kind = cpp[:-length], kind[:-length]
    if cpp == kind:
        return True
    if cpp.startswith("<") and cpp.endswith(">"):
        spelled = _spelled(cpp)
        is_number = NUMBERS.fullmatch(spelled) or TEXT.fullmatch(spelled)
        # Of a class, an enumeration or a pointer nothing is known: torch's handles are among them.
        return not is_number or (kind in ENUMS and spelled in ("int", "unsigned int"))
    return (cpp in ENUMS and kind == "int") or (cpp == "int" and kind in ENUMS)


def _type(kind: Any) -> str:
    """Returns the name in schemas of a type of torch's; a list's size does not matter."""
    if kind.kind() == "ListType":
        return f"{_type(kind.getElementType())}[]"
    if kind.kind() == "OptionalType":
        return f"{_type(kind.getElementType())}?"
    return KINDS.get(kind.kind()) or str(kind)


def _spelled(name: str) -> str:
    """Returns the C++ type for a schema's type, or for what the library says of one that no schema has."""
    if name.endswith("[]"):
        return f"std::vector<{_spelled(name[:-2])}>"
    if name.endswith("?"):
        return f"std::optional<{_spelled(name[:-1])}>"
    if match := OTHER_TYPE.fullmatch(name):
        return STABLE_PREFIX.sub("", match[1]).replace(" *", "*").strip()
    return CPP.get(name, name).removeprefix("torch::stable::")


def _result(kinds: Sequence[str]) -> str:
    """Returns the C++ type of a function that returns these types of a schema."""
    spelled = [_spelled(kind) for kind in kinds]
    return "void" if not spelled else spelled[0] if len(spelled) == 1 else f"std::tuple<{', '.join(spelled)}>"


def _count(values: Sequence[str], noun: str) -> str:
    if not values:
        return f"no {noun}"
    return f"{len(values)} {noun}{'s' if len(values) > 1 else ''} ({', '.join(map(_spelled, values))})"
