"""Every operator of the facade against torch's own headers: `python tests/facade differential`.

One generated source calls each function and method, once with all of its arguments and once with those alone that have
no default. It is compiled on the facade and on torch's headers. Both get the same tensors and numbers, drawn by the
arguments' types and names, over dtypes and shapes; what they return, what they leave in their arguments, gradients and
errors must be the same. A call that no drawn arguments fit counts as not reached, and is listed.
"""

import dataclasses
import enum
import importlib.util
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from facade import expressions
from facade.compiling import compile_library
from facade.outcomes import of_call
from facade.settings import SETTINGS
from opforge.builders.facade import flags
from opforge.builders.facade.generate import emulated, split

GENERATED = flags.INCLUDE / "opforge" / "facade" / "generated"
LINE = re.compile(
    r"template <int Used = 0> (?P<result>.+?) (?P<name>\w+)\((?P<parameters>.*)\)(?: const)? \{ (?P<body>.*) \}$"
)

# For each type of a parameter: the pool that its values come from, and the expression that takes one.
POOLS = {
    "const Tensor&": ("tensors", "a.tensor({})"),
    "Tensor&": ("tensors", "a.tensor({})"),
    "const std::optional<Tensor>&": ("tensors", "a.optional_tensor({})"),
    "TensorList": ("lists", "at::TensorList(a.lists.at({}))"),
    "const c10::List<std::optional<Tensor>>&": ("lists", "a.optional_list({})"),
    "IntArrayRef": ("int_lists", "at::IntArrayRef(*a.int_lists.at({}))"),
    "OptionalIntArrayRef": ("int_lists", "a.optional_ints({})"),
    "ArrayRef<double>": ("float_lists", "at::ArrayRef<double>(a.float_lists.at({}))"),
    "std::optional<ArrayRef<double>>": ("float_lists", "std::optional<at::ArrayRef<double>>(a.float_lists.at({}))"),
    "int64_t": ("ints", "a.ints.at({}).value()"),
    "std::optional<int64_t>": ("ints", "a.ints.at({})"),
    "double": ("floats", "a.floats.at({}).value()"),
    "std::optional<double>": ("floats", "a.floats.at({})"),
    "bool": ("bools", "a.bools.at({}).value()"),
    "std::optional<bool>": ("bools", "a.bools.at({})"),
    "std::array<bool, 2>": ("bools", "a.flags<2>({})"),
    "std::array<bool, 3>": ("bools", "a.flags<3>({})"),
    "std::array<bool, 4>": ("bools", "a.flags<4>({})"),
    "std::string_view": ("strings", "a.strings.at({}).value()"),
    "std::optional<std::string_view>": ("strings", "a.optional_string({})"),
    "ScalarType": ("dtypes", "a.dtype({}).value()"),
    "std::optional<ScalarType>": ("dtypes", "a.dtype({})"),
    "TensorOptions": ("dtypes", "a.options({})"),
    "MemoryFormat": ("formats", "a.format({}).value()"),
    "std::optional<MemoryFormat>": ("formats", "a.format({})"),
    "const Scalar&": ("scalars", "a.scalar({}).value()"),
    "const std::optional<Scalar>&": ("scalars", "a.scalar({})"),
    "Layout": ("", "at::kStrided"),
    "std::optional<Layout>": ("", "std::optional<at::Layout>()"),
    "Device": ("", "at::Device(at::kCPU)"),
    "std::optional<Device>": ("", "std::optional<at::Device>()"),
    "std::optional<Generator>": ("", "std::optional<at::Generator>()"),
}
NAMES = (
    "tensors",
    "lists",
    "int_lists",
    "float_lists",
    "ints",
    "floats",
    "bools",
    "strings",
    "dtypes",
    "formats",
    "scalars",
)
TYPES = {
    "tensors": "std::vector<std::optional<at::Tensor>>",
    "lists": "std::vector<std::vector<at::Tensor>>",
    "int_lists": "std::vector<std::optional<std::vector<int64_t>>>",
    "float_lists": "std::vector<std::vector<double>>",
    "ints": "std::vector<std::optional<int64_t>>",
    "floats": "std::vector<std::optional<double>>",
    "bools": "std::vector<std::optional<bool>>",
    "strings": "std::vector<std::optional<std::string>>",
    "dtypes": "std::vector<std::optional<int64_t>>",
    "formats": "std::vector<std::optional<int64_t>>",
    # torch's pybind11 converts no Scalar: its kind, as a dtype, and its parts
    "scalars": "std::vector<std::optional<std::tuple<int64_t, int64_t, double, double>>>",
}
PROLOGUE = """
#include <torch/extension.h>
struct Args {
%s
  at::Tensor undefined;
  at::Tensor& tensor(size_t i) { auto& t = tensors.at(i); return t ? *t : undefined; }
  std::optional<at::Tensor> optional_tensor(size_t i) { return tensors.at(i); }
  c10::List<std::optional<at::Tensor>> optional_list(size_t i) {
    c10::List<std::optional<at::Tensor>> r;
    for (const auto& t : lists.at(i)) r.push_back(std::optional<at::Tensor>(t));
    return r;
  }
  at::OptionalIntArrayRef optional_ints(size_t i) {
    if (!int_lists.at(i)) return std::nullopt;
    return at::OptionalIntArrayRef(at::IntArrayRef(*int_lists.at(i)));
  }
  template <size_t N> std::array<bool, N> flags(size_t i) {
    std::array<bool, N> r; for (auto& f : r) f = bools.at(i).value(); return r;
  }
  std::optional<c10::string_view> optional_string(size_t i) {
    if (!strings.at(i)) return std::nullopt;
    return c10::string_view(*strings.at(i));
  }
  std::optional<at::ScalarType> dtype(size_t i) {
    if (!dtypes.at(i)) return std::nullopt;
    return static_cast<at::ScalarType>(*dtypes.at(i));
  }
  at::TensorOptions options(size_t i) {
    at::TensorOptions o; return dtypes.at(i) ? o.dtype(*dtype(i)) : o;
  }
  std::optional<at::Scalar> scalar(size_t i) {
    if (!scalars.at(i)) return std::nullopt;
    auto [kind, integer, real, imaginary] = *scalars.at(i);
    if (kind == 11) return at::Scalar(integer != 0);
    if (kind == 4) return at::Scalar(integer);
    return kind == 7 ? at::Scalar(real) : at::Scalar(c10::complex<double>(real, imaginary));
  }
  std::optional<at::MemoryFormat> format(size_t i) {
    if (!formats.at(i)) return std::nullopt;
    return static_cast<at::MemoryFormat>(*formats.at(i));
  }
};
struct Result {
  std::vector<at::Tensor> tensors; std::vector<double> numbers;
  void add(const at::Tensor& t) { tensors.push_back(t); }
  void add(const std::vector<at::Tensor>& l) { for (auto& t : l) tensors.push_back(t); }
  void add(double v) { numbers.push_back(v); }
  void add(at::ScalarType v) { numbers.push_back(static_cast<double>(v)); }
  template <class... T> void add(const std::tuple<T...>& t) {
    std::apply([&](const auto&... v) { (add(v), ...); }, t);
  }
};
using Case = void (*)(Args&, Result&);
"""
CASES = "static const Case cases[] = {"
EPILOGUE = """
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("call", [](int64_t i, %s) {
    Args a{%s}; Result r; cases[i](a, r);
    return std::make_tuple(r.tensors, r.numbers, a.tensors, a.lists);
  });
}
"""


# Without the arguments that have defaults torch's own overloads of these are ambiguous.
AMBIGUOUS = frozenset({"stft", "bernoulli_out", "normal_out"})


@dataclasses.dataclass(frozen=True)
class Call:
    """A function or method of the facade, in the form that one case calls."""

    kind: str
    name: str
    result: str
    parameters: tuple[tuple[str, str], ...]  # each a type and a name
    overload: str

    def label(self) -> str:
        """Returns the call's text for people."""
        return f"{self.kind} {self.name}({', '.join(f'{kind} {name}' for kind, name in self.parameters)})"


def calls() -> Iterator[Call]:
    """Yields each generated call that is not refused, with all arguments, and with those without a default."""
    for kind, path in (("function", "functions.inc"), ("method", "methods.inc")):
        for line in (GENERATED / path).read_text().splitlines():
            match = LINE.match(line)
            assert match, line
            if "static_assert" in match["body"]:
                continue
            texts = split(match["parameters"])
            overload = re.search(r'"(aten::\w+)", "(\w*)"|ops<Used>::(?!in_place\()(\w+)\(', match["body"])
            assert overload, line
            own = [("Tensor&", "self")] if kind == "method" else []
            every = own + [_parameter(text) for text in texts]
            required = own + [_parameter(text) for text in texts if "=" not in text]
            if all(entry[0] in POOLS for entry in every):
                name = overload[3] or f"{overload[1]}.{overload[2]}"
                yield Call(kind, match["name"], match["result"], tuple(every), name)
                if required != every and match["name"] not in AMBIGUOUS:
                    yield Call(kind, match["name"], match["result"], tuple(required), name)


def _parameter(text: str) -> tuple[str, str]:
    declared = text.partition("=")[0].strip()
    kind, _, name = declared.rpartition(" ")
    return kind, name


def source(chosen: Sequence[Call]) -> str:
    """Returns the text of the source that makes the calls."""
    lines = []
    for call in chosen:
        taken = dict.fromkeys(NAMES, 0)
        given = []
        for kind, _ in call.parameters:
            pool, expression = POOLS[kind]
            given.append(expression.format(taken[pool]) if pool else expression)
            if pool:
                taken[pool] += 1
        if call.kind == "method":
            text = f"{given[0]}.{call.name}({', '.join(given[1:])})"
        else:
            text = f"at::{call.name}({', '.join(given)})"
        text = text if call.result == "void" else f"r.add({text})"
        lines.append(f"  [](Args& a, Result& r) {{ {text}; }},")
    members = "\n".join(f"  {TYPES[name]} {name};" for name in NAMES)
    parameters = ", ".join(f"{TYPES[name]} {name}" for name in NAMES)
    moved = ", ".join(f"std::move({name})" for name in NAMES)
    return PROLOGUE % members + f"{CASES}\n" + "\n".join(lines) + "\n};\n" + EPILOGUE % (parameters, moved)


# Not called: what ends the process, never returns, or reads or makes files.
SKIPPED = re.compile(
    r"^(from_file(_out)?|_?resize_\w*|set_data|segment_reduce|_segment_reduce_backward|record_stream|is_pinned|pin_memory)$"
)
# Of these nothing but the layout is compared: memory that nothing has written, sums in an order that depends on where
# the memory lies, the middle of numbers of which an expanded tensor has one in several places, a loss of no element,
# memory of bools that is read as integers.
UNINITIALIZED = re.compile(r"empty|^resize|^linalg_lstsq|median|^multilabel_margin_loss|^set$")


class Draw:
    """Draws arguments for a call, as a function of a seed."""

    def __init__(self, seed: int) -> None:
        """Begins with a seed."""
        self.random = random.Random(seed)
        shapes = [(3, 4), (4, 4), (2, 3, 4), (4,), (), (0, 4), (1, 2, 6, 6), (2, 4, 5), (3, 3)]
        self.shape = self.random.choice(shapes)
        self.style = self.random.choice(["plain", "plain", "transposed", "expanded", "strided"])
        self.dtype = self.random.choice(
            ["float32", "float32", "float64", "int64", "int32", "uint8", "bool", "float16", "bfloat16", "complex64"]
        )
        self.same = self.random.random() < 0.75

    def tensor(self, name: str) -> Any:
        """Returns a tensor for the parameter `name`."""
        import torch

        dtype, shape = getattr(torch, self.dtype), self.shape
        if re.search(r"ind(ex|ices)|^target|batch|tidx|lengths|^repeats$|offsets|^sorter", name):
            dtype = torch.int64
        elif re.search(r"mask|condition", name):
            dtype = torch.bool
        elif not self.same:
            dtype = getattr(torch, self.random.choice(["float32", "float64", "int64", "bool", "float16"]))
            shape = self.random.choice([shape, shape[-1:], (), shape])
        if self.style == "transposed" and len(shape) > 1:
            made = self.fill((*shape[:-2], shape[-1], shape[-2]), dtype, name).transpose(-1, -2)
        elif self.style == "expanded" and len(shape) > 1:
            made = self.fill((1, *shape[1:]), dtype, name).expand(shape)
        elif self.style == "strided" and len(shape) > 0:
            made = self.fill((*shape[:-1], shape[-1] * 2), dtype, name)[..., ::2]
        else:
            made = self.fill(shape, dtype, name)
        return made

    def fill(self, shape: Any, dtype: Any, name: str) -> Any:
        """Returns a contiguous tensor of numbers that indices may be, too."""
        import torch

        if dtype == torch.bool:
            return torch.rand(shape) < 0.5
        if dtype in (torch.int64, torch.int32, torch.uint8):
            high = 2 if re.search("ind|target", name) else 5
            return torch.randint(0, high, shape).to(dtype)
        if dtype.is_complex:
            return torch.randn(shape, dtype=dtype)
        return (torch.randn(shape) * 2 if self.random.random() < 0.7 else torch.rand(shape)).to(dtype)

    def value(self, pool: str, kind: str, name: str) -> Any:
        """Returns a value for the parameter of a type."""

        chance, optional = self.random, "optional" in kind or "Optional" in kind
        if pool == "tensors":
            return None if optional and chance.random() < 0.5 else self.tensor(name)
        if optional and pool not in ("lists", "float_lists") and chance.random() < 0.4:
            return None
        if pool == "lists":
            return [self.tensor(name) for _ in range(chance.choice([1, 2, 2, 3]))]
        if pool == "int_lists":
            count = max(len(self.shape), 1)
            if re.search(r"size|shape|sizes", name):
                return chance.choice([list(self.shape), [2, 3], [12], [-1], [3, 4], [4]])
            if re.search(r"dim|axis|axes|permute", name):
                return chance.choice([[0], [-1], [0, 1], list(range(count)), [count - 1]])
            if re.search(r"stride|dilation|kernel", name):
                return chance.choice([[1], [1, 1], [2, 2], [1, 1, 1], [2]])
            return chance.choice([[0], [0, 0], [1], [1, 1], [2, 2], [0] * count])
        if pool == "float_lists":
            return [chance.choice([0.5, 1.0, 2.0]) for _ in range(chance.choice([1, 2]))]
        if pool == "ints":
            if re.search(r"dim|axis", name):
                return chance.choice([0, 0, 1, -1, -1, 7])
            return chance.choice([0, 1, 1, 2, 2, 3, -1, 4, 5])
        if pool == "floats":
            return chance.choice([0.5, 1.0, 0.25, 2.0, 0.0, -1.0])
        if pool == "bools":
            return chance.random() < 0.5
        if pool == "strings":
            return chance.choice(
                ["mean", "sum", "floor", "trunc", "none", "left", "ij", "prod", "constant", "fro", "linear"]
            )
        if pool == "dtypes":
            return chance.choice([6, 7, 6, 4, 3, 11, 5])
        if pool == "formats":
            return chance.choice([0, 0, 1])
        return self.scalar(
            chance.choice([0, 1, 1, 2, 3, -1, -2, 0.5, 1.5, -0.5, 1.0, 2.0, True, 300, 2.5, complex(1, 2), 2**40])
        )

    def scalar(self, value: Any) -> tuple[int, int, float, float]:
        """Returns a number's kind, as a dtype, and its parts."""
        if isinstance(value, bool):
            return 11, int(value), 0.0, 0.0
        if isinstance(value, int):
            return 4, value, 0.0, 0.0
        if isinstance(value, float):
            return 7, 0, value, 0.0
        return 9, 0, value.real, value.imag


# Calls of which a gradient may have another last bit, and how far it may be, in units of the last place. See
# docs/decisions/100-facade.md.
LAST_BITS = frozenset({"add", "sub", "subtract"})
UNITS = 1


# Operators with a number that others compute, whose last bits may differ: docs/facade.md. How far, in units of the last
# place of the largest number that the call has taken or given.
NEAR = emulated("near_scalars.h")
NEAR_UNITS = 4


def values(tree: object) -> list[tuple[float, list[float]]]:
    """Returns the numbers of each tensor that has some, with the unit in the last place of its dtype's 1."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._pytree import tree_flatten

    found = []
    for leaf in tree_flatten(tree)[0]:
        leaf = getattr(leaf, "inner", leaf)
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, FakeTensor) or leaf.is_meta or leaf.is_sparse:
            continue
        plain = leaf.detach().resolve_conj().resolve_neg()
        plain = torch.view_as_real(plain) if plain.is_complex() else plain
        unit = torch.finfo(plain.dtype).eps if plain.is_floating_point() else 0.0
        found.append((unit, plain.double().flatten().tolist()))
    return found


def are_nearly(ours: Any, theirs: Any) -> bool:
    """Returns whether two lists of `values` differ in last bits alone."""
    every = [abs(number) for _, numbers in theirs for number in numbers if math.isfinite(number)]
    largest = max(every, default=0.0)

    def near(one: float, other: float, unit: float) -> bool:
        both = math.isnan(one) and math.isnan(other)
        return one == other or both or abs(one - other) <= NEAR_UNITS * unit * largest

    return [(unit, len(numbers)) for unit, numbers in ours] == [
        (unit, len(numbers)) for unit, numbers in theirs
    ] and all(
        near(one, other, unit)
        for (unit, numbers), (_, wanted) in zip(ours, theirs, strict=True)
        for one, other in zip(numbers, wanted, strict=True)
    )


def layouts(outcome: Any, with_strides: bool) -> Any:
    """Returns an outcome with the layout alone of each tensor. One without elements has no strides that count."""
    if not isinstance(outcome, list):
        return outcome
    if "tensor" not in outcome[:2]:
        return [layouts(part, with_strides) for part in outcome]
    kept = outcome[:-2]
    shape = next(place for place, part in enumerate(kept) if isinstance(part, list))
    return kept if with_strides and 0 not in kept[shape] else kept[: shape + 1] + kept[shape + 2 :]


def steps(tensors: Sequence[Any]) -> list[list[int]]:
    """Returns the numbers of each tensor as their places among the numbers of its dtype: two neighbors are one apart.

    Zeros of both signs have one place. A NaN and no tensor have none: each is told by its absence from the list.
    """
    import torch

    found: list[list[int]] = []
    for tensor in tensors:
        if tensor is None:
            found.append([])
            continue
        plain = tensor.detach().resolve_conj().resolve_neg()
        flat = (torch.view_as_real(plain) if plain.is_complex() else plain).contiguous().flatten()
        size = flat.element_size()
        lowest = torch.iinfo({2: torch.int16, 4: torch.int32, 8: torch.int64}[size]).min
        bits = flat.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[size]).tolist()
        kept = [bit for bit, is_nan in zip(bits, flat.isnan().tolist(), strict=True) if not is_nan]
        found.append([bit if bit >= 0 else lowest - bit for bit in kept])
    return found


def are_near(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Returns whether the records of two outcomes have gradients that differ in last bits alone."""
    if len(ours) != 1 or len(theirs) != 1:
        return False
    mine, expected = json.loads(ours[0]), json.loads(theirs[0])
    return [len(part) for part in mine] == [len(part) for part in expected] and all(
        abs(one - other) <= UNITS
        for part, wanted in zip(mine, expected, strict=True)
        for one, other in zip(part, wanted, strict=True)
    )


# How often a call's arguments are drawn for each of settings.SETTINGS beside the plain one.
IN_SETTINGS = 2


def drawn(count: int) -> Iterator[tuple[str, int]]:
    """Yields the setting and the seed of each case of a call."""
    for seed in range(count):
        yield "gradients" if seed % 3 == 2 else "plain", seed
    for setting in SETTINGS:
        if setting not in ("plain", "gradients"):
            yield from ((setting, seed) for seed in range(min(IN_SETTINGS, count)))


def run_cases(library: Path, name: str, chosen: Sequence[Call], first: int, count: int, out: Path) -> None:
    """Runs the calls of one library, and appends each one's outcomes to a file as it goes."""
    import torch

    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec and spec.loader
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with out.open("a") as file:
        for position in range(first, len(chosen)):
            call = chosen[position]
            # The line is there before the call: one that ends the process is known by it.
            print(json.dumps({"begin": position}), file=file, flush=True)
            if SKIPPED.search(call.name):
                continue
            found = [run_case(module, call, position, setting, seed) for setting, seed in drawn(count)]
            print(json.dumps({"position": position, "found": found}), file=file, flush=True)


def run_case(module: ModuleType, call: Call, position: int, setting: str, seed: int) -> tuple[Any, list[str]]:
    """Runs a call in a setting, with the arguments of a seed. Returns its outcome, and what the setting has seen."""
    import torch

    torch.manual_seed(seed)
    pools: dict[str, list[Any]] = {pool: [] for pool in NAMES}
    draw = Draw(seed * 7919 + position)
    for kind, parameter in call.parameters:
        pool = POOLS[kind][0]
        if pool:
            pools[pool].append(draw.value(pool, kind, parameter))
    lists = [len(part) for part in pools["lists"]]
    seen: list[str] = []

    def function(tensors: list[Any]) -> object:
        given = dict(pools, tensors=tensors[sum(lists) :], lists=[])
        for size in lists:
            given["lists"].append(tensors[:size])
            tensors = tensors[size:]
        torch.manual_seed(1)
        results, numbers, changed, changed_lists = module.call(position, *(given[pool] for pool in NAMES))
        if UNINITIALIZED.search(call.name):
            results, changed = [torch.zeros_like(part) for part in results], []
        return results, numbers, changed, changed_lists

    def act() -> object:
        tensors = [part for entry in pools["lists"] for part in entry] + pools["tensors"]
        result, record = SETTINGS[setting](function, tensors)
        seen.extend(record)
        if setting == "gradients" and call.name.strip("_") in LAST_BITS and len(result) == 2:
            seen.append(json.dumps(steps(result[1])))
        if call.overload in NEAR:
            seen[:] = [json.dumps(values(result))]
        return result

    return of_call(act), seen


# Of an error of its C functions torch writes the backtrace as text, which takes 6 ms, four fifths of a part's time.
# Nothing of it is compared: without frames there is nothing to write.
WITHOUT_BACKTRACE = """
extern "C" int backtrace(void**, int) { return 0; }
extern "C" char** backtrace_symbols(void* const*, int) { return nullptr; }
"""


def without_backtrace(folder: Path) -> Path:
    """Returns a library that takes the place of the C library's backtraces where it is preloaded."""
    path = folder / "without_backtrace.so"
    if not path.exists():
        command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
        subprocess.run(command, input=WITHOUT_BACKTRACE, text=True, check=True)
    return path


def recorded(kind: str, folder: Path, part: int, chosen: Sequence[Call], count: int) -> dict[int, Any]:
    """Returns the outcomes of a part's calls. A call that ends its process is left out, and the others go on."""
    out = folder / f"{kind}-{part}.jsonl"
    out.unlink(missing_ok=True)
    first = 0
    environment = os.environ | {"LD_PRELOAD": str(without_backtrace(folder))}
    while True:
        command = [
            sys.executable,
            str(Path(__file__).parent),
            "differential-child",
            kind,
            str(part),
            str(first),
            str(count),
            str(out),
            str(folder),
        ]
        ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=environment)
        lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        if ended.returncode == 0:
            break
        begun = [line["begin"] for line in lines if "begin" in line]
        if not begun or begun[-1] < first:
            raise RuntimeError(f"the child failed before its first call:\n{ended.stderr[-3000:]}")
        print(f"  {kind}: {chosen[begun[-1]].label()} ended its process ({ended.returncode})")
        first = begun[-1] + 1
    return {line["position"]: line["found"] for line in lines if "found" in line}


# The variable with a regular expression of the calls that alone are compared, for the processes of a run.
CHOSEN = "OPFORGE_FACADE_CALLS"


def parts(size: int = 1100) -> list[list[Call]]:
    """Returns the calls in parts: each is one source."""
    chosen = re.compile(os.environ.get(CHOSEN, ""))
    every = [call for call in calls() if chosen.search(call.name)]
    return [every[begin : begin + size] for begin in range(0, len(every), size)]


class Difference(enum.IntEnum):
    """How far two outcomes of a case are apart."""

    NONE = 0
    TEXT = 1
    """Errors of one type."""
    TYPE = 2
    """Errors of two types."""
    OPERATORS = 3
    """A mode or a subclass has seen other operators."""
    VALUE = 4
    """Other values, or an error for one of them alone."""


# What torch refuses of a tensor that a result is written into, and the facade's forms with an out argument do not.
OUT_REFUSED = re.compile(
    r"Batching rule not implemented for aten::\w+\.(\w+_)?out;|Expected out tensor to have dtype"
    r"|Found dtype \w+ but expected|the output given to float_power has dtype|Too many positional arguments"
    r"|unsupported operation: more than one element of the written-to tensor|std_var_all: Unsupported dtype"
)


def without_bits(outcome: Any) -> Any:
    """Returns an outcome of gradients with the layout alone of each gradient."""
    kind, (name, result, gradients) = outcome
    return kind, name, result, [part[:6] for part in gradients[1:]]


def stays_different(call: Call, setting: str, mine: Any, expected: Any) -> bool:
    """Returns whether a case's difference is one that docs/decisions/100-facade.md states.

    Where a tensor has no memory, the facade checks numbers as on the CPU, and the operators that compute floor_divide
    and copysign give another layout. torch's own linalg_matrix_rank_out there puts another tensor into the place of its
    first argument. A gradient of add and sub may have another last bit, and a zero of another sign. Operators of NEAR
    may have other last bits. A result that is written into a further argument may be one that torch refuses to write.
    """
    (ours, our_record), (theirs, their_record) = mine, expected
    is_written = call.name.endswith("_out") and not call.overload.startswith("aten::")
    if is_written and ours[0] == "value" and theirs[0] == "error" and OUT_REFUSED.match(theirs[2]):
        return True
    if call.overload in NEAR and ours[0] == theirs[0] == "value":
        with_strides = setting != "gradients"
        same = layouts(ours, with_strides) == layouts(theirs, with_strides) and are_nearly(
            json.loads(our_record[0]), json.loads(their_record[0])
        )
        return same or setting in ("fake", "meta")
    if setting == "gradients":
        is_listed = call.name.strip("_") in LAST_BITS and ours[0] == theirs[0] == "value"
        return is_listed and are_near(our_record, their_record) and without_bits(ours) == without_bits(theirs)
    if setting not in ("fake", "meta"):
        return False
    checks_numbers = not call.overload.startswith("aten::") and ours[0] == "error"
    return checks_numbers or call.name in ("linalg_matrix_rank_out", "floor_divide", "copysign")


def difference(call: Call, setting: str, mine: Any, expected: Any) -> Difference:
    """Returns how far the outcome on the facade is from that on torch's headers."""
    (ours, our_record), (theirs, their_record) = mine, expected
    # What the facade refuses by its own text is documented: it computes nothing else instead.
    if ours[0] == "error" and "on torch's stable ABI" in ours[2]:
        return Difference.NONE
    if ours[0] == theirs[0] == "error":
        return Difference.TYPE if ours[1] != theirs[1] else Difference.TEXT if ours != theirs else Difference.NONE
    if ours != theirs and not stays_different(call, setting, mine, expected):
        return Difference.VALUE
    # An operator that others compute is seen as those.
    if our_record != their_record and call.overload.startswith("aten::"):
        return Difference.OPERATORS
    return Difference.NONE


def built(kind: str, folder: Path, name: str, text: str, made: Path | None = None) -> Path:
    """Returns the library of a source: compiled, or from before if its text and the facade's headers are the same.

    Args:
        kind: `facade`, or `torch` for torch's own headers.
        folder: Where libraries are kept.
        name: The library's name.
        text: The source.
        made: The folder of a run with another torch. Its libraries on the facade are taken as they are.

    Raises:
        RuntimeError: The given library was made from another text or other headers.
    """
    source_path, library = folder / f"{name}.cpp", folder / kind / f"{name}.so"
    stamp = library.with_suffix(".source")
    expected = text if kind == "torch" else text + "".join(p.read_text() for p in sorted(flags.INCLUDE.rglob("*.*")))
    library.parent.mkdir(parents=True, exist_ok=True)
    if made and kind == "facade":
        for path in (library, stamp):
            shutil.copy(made / kind / path.name, path)
        if stamp.read_text() != expected:
            raise RuntimeError(f"{made / kind / library.name} was made from other headers: run it there once more")
    elif not (library.exists() and stamp.exists() and stamp.read_text() == expected):
        source_path.write_text(text)
        cost = compile_library(kind, name, [source_path], library, ["-O0"])
        print(
            f"{name} on {kind}: {cost.processor_seconds:.0f} s of processor time, {cost.megabytes:.0f} MB", flush=True
        )
        stamp.write_text(expected)
    return library


def built_on_torch(folder: Path, name: str, text: str) -> set[int]:
    """Compiles a part on torch's own headers, without the calls that they do not have.

    Returns:
        The positions of these calls: another torch than the one whose operators are generated may have removed some.
    """
    lines = text.splitlines()
    first, absent = lines.index(CASES) + 1, set[int]()
    while True:
        try:
            built("torch", folder, name, "\n".join(lines) + "\n")
            return absent
        except RuntimeError as error:
            found = re.findall(rf"{name}\.cpp:(\d+):\d+: error: .*(?:no member named|is not a member of)", str(error))
            if not found:
                raise
            for line in {int(number) - 1 for number in found}:
                lines[line] = "  [](Args&, Result&) {},"
                absent.add(line - first)


def run(folder: Path, count: int, only: Sequence[int] = (), made: Path | None = None) -> int:
    """Compiles, runs and compares all calls. Returns how many outcomes differ by more than an error's text or type."""
    counts: Counter[tuple[str, Difference]] = Counter()
    reached = total = 0
    unreached, types = [], dict[tuple[str, str, str], tuple[int, str]]()
    for part, chosen in enumerate(parts()):
        if only and part not in only:
            continue
        built("facade", folder, f"part{part}", source(chosen), made)
        absent = built_on_torch(folder, f"part{part}", source(chosen))
        for position in sorted(absent):
            print(f"not in the headers of this torch: {chosen[position].label()}")
        ours, theirs = (recorded(kind, folder, part, chosen, count) for kind in ("facade", "torch"))
        for position, call in enumerate(chosen):
            if position in absent or position not in ours or position not in theirs:
                continue
            total += 1
            worked = False
            cases = zip(drawn(count), ours[position], theirs[position], strict=True)
            for (setting, seed), mine, expected in cases:
                found = difference(call, setting, mine, expected)
                counts[setting, found] += 1
                worked |= expected[0][0] == "value"
                if found is Difference.TYPE:
                    (_, our_type, our_text), (_, their_type, _) = mine[0], expected[0]
                    key = (setting, their_type, our_type)
                    types[key] = (types.get(key, (0, ""))[0] + 1, f"{call.label()} seed {seed}: {our_text[:160]}")
                elif found > Difference.TYPE:
                    print(
                        f"{call.label()} [{call.overload}] {setting}, seed {seed}\n"
                        f"  torch:  {str(expected)[:300]}\n  facade: {str(mine)[:300]}"
                    )
            reached += worked
            if not worked:
                unreached.append(call.label())
    for (setting, theirs_is, ours_is), (number, example) in sorted(types.items()):
        print(f"{number} errors in {setting!r}: {theirs_is} on torch's headers, {ours_is} here, such as {example}")
    for setting in SETTINGS:
        of_setting = {kind: counts[setting, kind] for kind in Difference}
        differing = ", ".join(f"{number} {kind.name.lower()}" for kind, number in of_setting.items() if kind and number)
        print(f"{setting}: {sum(of_setting.values())} cases, differing: {differing or 'none'}")
    print(f"{reached} of {total} calls returned a value at least once")
    (folder / "unreached.txt").write_text("\n".join(unreached) + "\n")
    return sum(number for (_, kind), number in counts.items() if kind > Difference.TYPE)


def run_expressions(folder: Path, made: Path | None = None) -> int:
    """Compares the expressions of names that are written by hand. Returns how many outcomes differ."""
    text = expressions.source([text for text, _ in expressions.EXPRESSIONS])
    found = {}
    for kind in ("facade", "torch"):
        library = built(kind, folder, "expressions", text, made)
        command = [sys.executable, "-W", "ignore", str(Path(__file__).parent), "expressions-child", str(library)]
        ended = subprocess.run([*command, "--record"], check=True, capture_output=True, text=True)
        found[kind] = json.loads(ended.stdout.splitlines()[-1])
    different = 0
    for key, (theirs, _) in found["torch"].items():
        mine, _ = found["facade"][key]
        refused = mine[0] == "error" and "on torch's stable ABI" in mine[2]
        if not (mine == theirs or mine[0] == theirs[0] == "error" or refused or expressions.stays_different(key)):
            different += 1
            print(f"{key}\n  torch:  {str(theirs)[:300]}\n  facade: {str(mine)[:300]}")
    print(f"{len(found['torch'])} cases of {len(expressions.EXPRESSIONS)} expressions: {different} differ")
    return different


def child(kind: str, part: str, first: str, count: str, out: str, folder: str) -> None:
    """Runs one part in this process."""
    library = Path(folder) / kind / f"part{part}.so"
    run_cases(library, f"part{part}", parts()[int(part)], int(first), int(count), Path(out))
