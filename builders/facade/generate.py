"""Writes the facade's operators: the declarations in torch's own headers, with bodies that call the stable dispatcher.

`python -m opforge.builders.facade.generate TORCH_INCLUDE` reads the headers of the oldest torch that is supported, so
that a library calls nothing that a later one alone has. An operator with a type that the stable ABI cannot carry is
declared as well, and refused with its reason when a source uses it.
"""

import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

INCLUDE = Path(__file__).parent / "include" / "opforge" / "facade"

# How a parameter's or a result's type is written in the facade. A type that is not in these tables is not carried.
PARAMETERS = {
    "const at::Tensor &": "const Tensor&",
    "at::Tensor &": "Tensor&",
    "const ::std::optional<at::Tensor> &": "const std::optional<Tensor>&",
    "at::TensorList": "TensorList",
    "const at::ITensorListRef &": "TensorList",
    "const c10::List<::std::optional<at::Tensor>> &": "const c10::List<std::optional<Tensor>>&",
    "at::IntArrayRef": "IntArrayRef",
    "at::OptionalIntArrayRef": "OptionalIntArrayRef",
    "at::ArrayRef<double>": "ArrayRef<double>",
    "::std::optional<at::ArrayRef<double>>": "std::optional<ArrayRef<double>>",
    "int64_t": "int64_t",
    "double": "double",
    "bool": "bool",
    "::std::array<bool,2>": "std::array<bool, 2>",
    "::std::array<bool,3>": "std::array<bool, 3>",
    "::std::array<bool,4>": "std::array<bool, 4>",
    "c10::string_view": "std::string_view",
    "::std::string_view": "std::string_view",
    "at::ScalarType": "ScalarType",
    "at::Layout": "Layout",
    "at::Device": "Device",
    "at::MemoryFormat": "MemoryFormat",
    "at::TensorOptions": "TensorOptions",
    "::std::optional<int64_t>": "std::optional<int64_t>",
    "::std::optional<double>": "std::optional<double>",
    "::std::optional<bool>": "std::optional<bool>",
    "::std::optional<c10::string_view>": "std::optional<std::string_view>",
    "::std::optional<::std::string_view>": "std::optional<std::string_view>",
    "::std::optional<at::ScalarType>": "std::optional<ScalarType>",
    "::std::optional<at::Layout>": "std::optional<Layout>",
    "::std::optional<at::Device>": "std::optional<Device>",
    "::std::optional<at::MemoryFormat>": "std::optional<MemoryFormat>",
    "::std::optional<at::Generator>": "std::optional<Generator>",
}
# Types that the facade has, but that no torch's stable ABI carries before SCALAR's is there.
REFUSED = {
    "const at::Scalar &": "const Scalar&",
    "const ::std::optional<at::Scalar> &": "const std::optional<Scalar>&",
    "at::ArrayRef<at::Scalar>": "ArrayRef<Scalar>",
}
RESULTS = {
    "at::Tensor": "Tensor",
    "at::Tensor &": "Tensor&",
    "const at::Tensor &": "const Tensor&",
    "::std::vector<at::Tensor>": "std::vector<Tensor>",
    "void": "void",
    "bool": "bool",
    "int64_t": "int64_t",
    "double": "double",
    "at::ScalarType": "ScalarType",
}

# Written by hand in tensor.h: they are answered without the dispatcher, or need more than a call.
BY_HAND = {
    "method": [
        "align_as",
        "to",
        "item",
        "contiguous",
        "size",
        "stride",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "index",
        "index_put_",
        "detach",
        "requires_grad_",
        "set_",
        "data",
        "set_data",
        "output_nr",
        "backward",
        "retain_grad",
        "retains_grad",
        "_backward",
        "is_leaf",
        "copy_",
        "is_neg",
        "is_conj",
        "is_inference",
    ],
    # Its C++ twin in torch takes other arguments, torch:: has one of its own, or newer torches have none.
    "function": [
        "align_tensors",
        "index",
        "index_put_",
        "from_file",
        "tensor",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "is_neg",
        "is_conj",
        "is_inference",
    ],
}
DECLARATION = re.compile(
    r"^inline (?P<result>[^()]+?) ?\b(?P<name>\w+)\((?P<parameters>.*)\) \{\n(?P<body>.*)\n\}", re.M
)
METHOD = re.compile(
    r"^inline (?P<result>[^()]+?) ?\bTensor::(?P<name>\w+)\((?P<parameters>.*)\) const \{\n(?P<body>.*)\n\}", re.M
)
CALL = re.compile(r"at::_ops::(?P<operator>\w+)::call\((?P<arguments>.*)\);")
OPERATOR = re.compile(
    r"struct TORCH_API (?P<struct>\w+) \{.*?name = \"aten::(?P<name>\w+)\";.*?overload_name = \"(?P<overload>\w*)\";",
    re.S,
)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter as torch declares it."""

    type: str
    name: str
    default: str | None

    def declared(self) -> str:
        """Returns the parameter's text in the facade."""
        text = (PARAMETERS | REFUSED)[self.type]
        if self.default is None:
            return f"{text} {self.name}"
        value = re.sub(r"\bat::|(?<![\w:])::(?=std)|\bc10::(?=MemoryFormat)", "", self.default)
        return f"{text} {self.name} = {value}"


@dataclasses.dataclass(frozen=True)
class Declaration:
    """A function or method of torch's API that is one call of an operator."""

    kind: str
    name: str
    result: str
    parameters: tuple[Parameter, ...]
    operator: str
    arguments: tuple[str, ...]

    @property
    def makes_by_default_on_the_cpu(self) -> bool:
        """Whether no device is the CPU, and no layout a strided one: in a factory such as `empty`.

        `empty_like` and its kind, and methods such as `new_empty`, take theirs from a tensor, and the sparse ones have
        no default.
        """
        beside = any("Tensor" in entry.type and entry.type != "at::TensorOptions" for entry in self.parameters)
        return self.kind == "function" and not beside and not self.name.startswith("sparse_")

    @property
    def refused(self) -> str | None:
        """Returns the type for which the stable ABI cannot carry this call, None if it can."""
        return next((REFUSED[parameter.type] for parameter in self.parameters if parameter.type in REFUSED), None)


def split(text: str) -> list[str]:
    """Returns the parts of a list of arguments or parameters: commas within brackets do not count."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "(<{[") - (character in ")>}]")
        if character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    return [*parts, text[start:].strip()] if text.strip() else []


def parameter(text: str) -> Parameter:
    """Returns the parameter that a declaration's text states."""
    declared, _, default = text.partition("=")
    kind, _, name = declared.strip().rpartition(" ")
    return Parameter(kind.strip(), name.strip(), default.strip() or None)


def result(text: str) -> str | None:
    """Returns a result's type in the facade, None if the stable ABI does not carry it."""
    if text.startswith("::std::tuple<"):
        inner = [RESULTS.get(part) for part in split(text[len("::std::tuple<") : -1])]
        # torch takes results of different types in the wrong order from the stack of the stable ABI.
        return (
            None if None in inner or len(set(inner)) > 1 else f"std::tuple<{', '.join(part for part in inner if part)}>"
        )
    return RESULTS.get(text)


ARGUMENTS = {
    r"c10::fromInt(?:ArrayRefSlow|64Slow)?\((\w+)\)": r"\1",
    r"(\w+)\.has_value\(\) \? ::std::make_optional\(c10::fromIntArrayRefSlow\(\*\1\)\) : .*": r"\1",
    r"(\w+)\.has_value\(\) \? ::std::make_optional\(c10::SymInt\(\*\1\)\) : .*": r"\1",
    r"c10::optTypeMetaToScalarType\((\w+)\.dtype_opt\(\)\)": r"\1.scalar_type_opt()",
    r"c10::impl::check_tensor_options_and_extract_memory_format\((\w+), (\w+)\)": r"facade::memory_format(\1, \2)",
    r"const_cast<Tensor&>\(\*this\)|\(at::Tensor&\)\*this": "*this",
}
"""Parts of an operator's call -> the facade's words for them."""


def argument(text: str) -> str:
    """Returns an argument of the operator's call in the facade's words."""
    for pattern, words in ARGUMENTS.items():
        text = re.sub(pattern, words, text)
    return text


def declarations(
    kind: str, text: str, defaults: dict[tuple[str, tuple[str, ...]], tuple[Parameter, ...]]
) -> Iterator[Declaration]:
    """Yields the declarations of one header that are one operator's call, less those for symbolic sizes."""
    for match in (METHOD if kind == "method" else DECLARATION).finditer(text):
        call = CALL.search(match["body"])
        if not call or match["name"].endswith("_symint") or match["name"].startswith("__dispatch"):
            continue
        parameters = tuple(map(parameter, split(match["parameters"])))
        parameters = defaults.get((match["name"], tuple(entry.type for entry in parameters)), parameters)
        yield Declaration(
            kind,
            match["name"],
            match["result"].strip(),
            parameters,
            call["operator"],
            tuple(map(argument, split(call["arguments"]))),
        )


def method_defaults(text: str) -> dict[tuple[str, tuple[str, ...]], tuple[Parameter, ...]]:
    """Returns the parameters of the methods that the class declares: their definitions repeat no default."""
    found = {}
    for match in re.finditer(r"^  [^()\n]*?\b(?P<name>\w+)\((?P<parameters>.*)\) const;$", text, re.M):
        parameters = tuple(map(parameter, split(match["parameters"])))
        found[match["name"], tuple(entry.type for entry in parameters)] = parameters
    return found


def emulated(header: str) -> dict[str, int]:
    """Returns the operators with a Scalar that a header computes by others, with the numbers of their parameters.

    Args:
        header: scalars.h, or near_scalars.h.
    """
    found = re.finditer(r"^ *static [\w:<>&, ]+ (\w+)\(([^{;]*)\) \{", (INCLUDE / header).read_text(), re.M)
    return {match[1]: len(list(split(match[2]))) for match in found}


def operators(include: Path) -> dict[str, tuple[str, str]]:
    """Returns the name and the overload of each operator's struct."""
    found = {}
    for path in sorted((include / "ATen" / "ops").glob("*_ops.h")):
        for match in OPERATOR.finditer(path.read_text()):
            found[match["struct"]] = (match["name"], match["overload"])
    return found


def body(declaration: Declaration, name: str, overload: str, carried: str, by_hand: Mapping[str, int]) -> str:
    """Returns the body of a function: a call of the dispatcher, of an emulation, or a refusal with its reason."""
    if declaration.operator in by_hand:
        return f"return ops<Used>::{declaration.operator}({', '.join(declaration.arguments)});"
    returning = declaration.operator.removesuffix("_out")
    if by_hand.get(returning) == len(declaration.arguments) - 1 and returning != declaration.operator:
        *arguments, out = declaration.arguments
        return f"return facade::put({out}, ops<Used>::{returning}({', '.join(arguments)}));"
    if declaration.refused:
        return f'static_assert(Used < 0, OPFORGE_REFUSED("{declaration.name}", "{declaration.refused}"));'
    call = f'"aten::{name}", "{overload}"' + "".join(f", {text}" for text in declaration.arguments)
    if carried.endswith("&") and not declaration.result.startswith("::std"):
        target = declaration.arguments[-1] if declaration.name.endswith(("_out", "_outf")) else declaration.arguments[0]
        target = "const_cast<Tensor&>(*this)" if target == "*this" else target
        return f"ops<Used>::in_place({call}); return {target};"
    if "&" in carried:
        count = carried.count("&")
        outs = ", ".join(declaration.arguments[-count:])
        return f"ops<Used>::template in_place<{count}>({call}); return {carried}({outs});"
    if any(entry.type == "at::TensorOptions" for entry in declaration.parameters):
        if declaration.makes_by_default_on_the_cpu:
            call = re.sub(r"\boptions\.(layout|device)_opt\(\)", r"facade::\1_to_pass(options)", call)
        return f"return facade::with_grad(options, ops<Used>::template call<{carried}>({call}));"
    return f"return ops<Used>::template call<{carried}>({call});"


def line(declaration: Declaration, names: dict[str, tuple[str, str]], by_hand: Mapping[str, int]) -> str | None:
    """Returns the facade's text for a declaration, None if it has a type that the facade does not have."""
    carried = result(declaration.result)
    known = all(entry.type in PARAMETERS or entry.type in REFUSED for entry in declaration.parameters)
    if carried is None or not known or declaration.operator not in names:
        return None
    if any("<at::Scalar>" in entry.type and entry.type.startswith("at::") for entry in declaration.parameters):
        carried = carried or "void"
    name, overload = names[declaration.operator]
    text = body(declaration, name, overload, carried, by_hand)
    parameters = ", ".join(entry.declared() for entry in declaration.parameters)
    ending = " const" if declaration.kind == "method" else ""
    return f"template <int Used = 0> {carried} {declaration.name}({parameters}){ending} {{ {text} }}"


def generate(include: Path) -> dict[str, list[str]]:
    """Returns the lines of the generated headers, by name.

    Args:
        include: torch's include folder.
    """
    names, by_hand = operators(include), emulated("scalars.h") | emulated("near_scalars.h")
    tensor = (include / "ATen" / "core" / "TensorBody.h").read_text()
    found = list(declarations("method", tensor, method_defaults(tensor)))
    for path in sorted((include / "ATen" / "ops").glob("*.h")):
        if not path.stem.endswith(("_ops", "_native", "_dispatch", "_meta")):
            found += declarations("function", path.read_text(), {})
    lines: dict[str, list[str]] = {"methods.inc": [], "functions.inc": []}
    seen = set()
    for declaration in found:
        private = declaration.name.startswith("_") and not declaration.name.startswith("__")
        if declaration.name in BY_HAND[declaration.kind] or (private and declaration.name not in PRIVATE):
            continue
        if declaration.name.endswith("_outf") or declaration.name.startswith(BACKENDS):
            continue
        text = line(declaration, names, by_hand)
        signature = (
            declaration.kind,
            declaration.name,
            tuple(PARAMETERS.get(p.type, p.type) for p in declaration.parameters),
        )
        if text and signature not in seen:
            seen.add(signature)
            lines["methods.inc" if declaration.kind == "method" else "functions.inc"].append(text)
    return lines | {"dispatch.inc": dispatch_macros()}


# Operators with a leading underscore that public sources call.
PRIVATE = frozenset(
    [
        "_unique",
        "_unique2",
        "_softmax",
        "_softmax_backward_data",
        "_log_softmax",
        "_log_softmax_backward_data",
        "_cdist_forward",
        "_cdist_backward",
        "_index_put_impl_",
        "_weight_norm",
        "_fft_c2c",
        "_fft_r2c",
        "_fft_c2r",
        "_thnn_fused_lstm_cell",
        "_cast_Byte",
        "_cast_Char",
        "_cast_Double",
        "_cast_Float",
        "_cast_Half",
        "_cast_Int",
        "_cast_Long",
        "_cast_Short",
        "_indices",
        "_nnz",
        "_values",
        "_shape_as_tensor",
        "_sparse_coo_tensor_unsafe",
        "_reshape_from_tensor",
        "_convolution",
        "_embedding_bag",
        "_trilinear",
        "_cumsum",
    ]
)
# The groups of AT_DISPATCH_*: their dtypes, and up to how many a macro's caller adds to them.
FLOATING, COMPLEX = ("Double", "Float"), ("ComplexDouble", "ComplexFloat")
INTEGRAL = ("Byte", "Char", "Int", "Long", "Short")
DISPATCH_GROUPS = {
    "FLOATING_TYPES": (FLOATING, 5),
    "FLOATING_TYPES_AND_HALF": ((*FLOATING, "Half"), 0),
    "REDUCED_FLOATING_TYPES": (("Half", "BFloat16"), 0),
    "COMPLEX_TYPES": (COMPLEX, 1),
    "FLOATING_AND_COMPLEX_TYPES": ((*FLOATING, *COMPLEX), 6),
    "INTEGRAL_TYPES": (INTEGRAL, 1),
    "ALL_TYPES": ((*INTEGRAL, *FLOATING), 3),
    "ALL_TYPES_AND_HALF": ((*INTEGRAL, *FLOATING, "Half"), 0),
    "ALL_TYPES_AND_COMPLEX": ((*INTEGRAL, *FLOATING, *COMPLEX), 8),
    "ALL_TYPES_AND_COMPLEX_AND_HALF": ((*INTEGRAL, *FLOATING, *COMPLEX, "Half"), 0),
}


def dispatch_macros() -> list[str]:
    """Returns the macros AT_DISPATCH_* and AT_DISPATCH_CASE_* of each group."""
    lines = []
    for group, (dtypes, most) in DISPATCH_GROUPS.items():
        cases = " ".join(f"AT_DISPATCH_CASE(at::ScalarType::{dtype}, __VA_ARGS__)" for dtype in dtypes)
        lines.append(f"#define AT_DISPATCH_CASE_{group}(...) {cases}")
        lines.append(
            f"#define AT_DISPATCH_{group}(TYPE, NAME, ...) "
            f"AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_{group}(__VA_ARGS__))"
        )
        for count in range(1, most + 1):
            plain = "1" if group == "FLOATING_AND_COMPLEX_TYPES" else ""  # torch's own name of the first
            name = f"{group}_AND{count if count > 1 else plain}"
            added = [f"S{number}" for number in range(1, count + 1)]
            extra = " ".join(f"AT_DISPATCH_CASE({dtype}, __VA_ARGS__)" for dtype in added)
            lines.append(
                f"#define AT_DISPATCH_CASE_{name}({', '.join(added)}, ...) "
                f"AT_DISPATCH_CASE_{group}(__VA_ARGS__) {extra}"
            )
            lines.append(
                f"#define AT_DISPATCH_{name}({', '.join(added)}, TYPE, NAME, ...) "
                f"AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_{name}({', '.join(added)}, __VA_ARGS__))"
            )
    return lines


# Operators of one backend or of quantized tensors: no public source calls them by torch's C++ API.
BACKENDS = ("mkldnn_", "cudnn_", "miopen_", "fbgemm_", "mps_", "quantized_", "fake_quantize_", "xnnpack_", "q_per_")


def main(arguments: list[str]) -> None:
    """Writes the generated headers from the torch headers in the folder that is given."""
    for name, lines in generate(Path(arguments[0])).items():
        (INCLUDE / "generated" / name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
