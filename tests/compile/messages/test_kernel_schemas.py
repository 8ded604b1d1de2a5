"""Kernels whose C++ types do not fit the schemas of their ops are refused when the library is loaded."""

from __future__ import annotations

import ctypes

import pytest
from support import sample_ops, tiers

from opforge.errors import KernelSchemaError

torch = pytest.importorskip("torch", reason="pip install torch")
pytestmark = pytest.mark.usefixtures("precompiled")

LONG = tiers.is_long()
HEADERS = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <optional>
#include <string>
#include <tuple>
#include <vector>
using torch::headeronly::HeaderOnlyArrayRef;
using torch::headeronly::Layout;
using torch::headeronly::MemoryFormat;
using torch::headeronly::ScalarType;
using torch::stable::Device;
using torch::stable::Tensor;
enum class Mode : int64_t { kFast };
"""
# The schema after the op's name, and the C++ function's type.
EXACT = [
    ("(Tensor x) -> Tensor", "Tensor f(Tensor)"),
    ("(Tensor(a!) x, Tensor y) -> Tensor(a!)", "Tensor f(Tensor&, const Tensor&)"),
    ("(Tensor(a!)[] xs, Tensor[] ys) -> ()", "void f(std::vector<Tensor>, const std::vector<Tensor>&)"),
    ("(Tensor? x, Tensor?[] xs) -> Tensor?", "std::optional<Tensor> f(const std::optional<Tensor>&, %s)"),
    ("(int n, float a=-1e-3, bool b=True) -> int", "int64_t f(const int64_t, double, bool)"),
    ("(int n) -> int", "size_t f(size_t)"),
    ("(int[2] n=[1, 2], *, float[]? a=None, str[] s) -> int[]", "std::vector<int64_t> f(%i, %a, %t)"),
    ("(str s='a,b)->(', str t=\"->\") -> str", "std::string f(std::string, std::string_view)"),
    ("(str? s) -> (Tensor y, int n)", "std::tuple<Tensor, int64_t> f(std::optional<std::string>)"),
    ("(Device d, Device? e) -> Device", "Device f(Device, std::optional<Device>)"),
    ("(ScalarType t, ScalarType? u) -> ScalarType", "ScalarType f(ScalarType, std::optional<ScalarType>)"),
    ("(Layout l, MemoryFormat m) -> ()", "void f(Layout, MemoryFormat)"),
    ("() -> (Tensor[], Tensor)", "std::tuple<std::vector<Tensor>, Tensor> f()"),
    ("(\n  Tensor x,\n  int n\n) -> Tensor", "Tensor f(Tensor, int64_t)"),
]
# What the library leaves to the loader.
CONVERTED = [
    ("(SymInt n, SymInt[] m) -> SymInt", "long f(long long, std::vector<int64_t>)"),
    ("(int t, ScalarType u, Layout l) -> ()", "void f(ScalarType, int64_t, int32_t)"),
    ("(DeviceIndex i, bool b) -> ()", "void f(int32_t, bool)"),
    ("(Tensor x, int mode) -> ()", "void f(AtenTensorHandle, Mode)"),
    ("(int ? n) -> Tensor [ ]", "std::vector<Tensor> f(std::optional<int64_t>)"),
]


def differs(where, cpp, kind, instead):
    """Returns the line of the error about an argument or a returned value."""
    return f"{where} is {cpp} in C++ and {kind} in the schema: write {instead}"


# And the lines of the error, without the names of the function and the op.
WRONG = [
    (
        "(Tensor x, int n) -> ()",
        "void f(Tensor, double)",
        [differs("argument 2, n,", "double", "int", "int64_t, or float in the schema")],
    ),
    ("(float a) -> ()", "void f(float)", [differs("argument 1, a,", "float", "float", "double")]),
    ("(int n) -> ()", "void f(int)", [differs("argument 1, n,", "int", "int", "int64_t")]),
    ("(bool b) -> ()", "void f(int64_t)", [differs("argument 1, b,", "int64_t", "bool", "bool, or int in the schema")]),
    (
        "(Tensor? x) -> ()",
        "void f(Tensor)",
        [differs("argument 1, x,", "Tensor", "Tensor?", "std::optional<Tensor>, or Tensor in the schema")],
    ),
    (
        "(Tensor[] x) -> ()",
        "void f(Tensor)",
        [differs("argument 1, x,", "Tensor", "Tensor[]", "std::vector<Tensor>, or Tensor in the schema")],
    ),
    (
        "(Tensor x) -> ()",
        "void f(std::vector<Tensor>)",
        [differs("argument 1, x,", "std::vector<Tensor>", "Tensor", "Tensor, or Tensor[] in the schema")],
    ),
    (
        "(int[] n) -> ()",
        "void f(std::vector<int>)",
        [differs("argument 1, n,", "std::vector<int>", "int[]", "std::vector<int64_t>")],
    ),
    (
        "(int[]? n) -> ()",
        "void f(std::vector<int64_t>)",
        [
            differs(
                "argument 1, n,",
                "std::vector<int64_t>",
                "int[]?",
                "std::optional<std::vector<int64_t>>, or int[] in the schema",
            )
        ],
    ),
    ("(str s) -> ()", "void f(const char*)", [differs("argument 1, s,", "const char*", "str", "std::string")]),
    (
        "(ScalarType t) -> ()",
        "void f(Device)",
        [differs("argument 1, t,", "Device", "ScalarType", "ScalarType, or Device in the schema")],
    ),
    ("() -> int", "int f()", [differs("the returned value", "int", "int", "int64_t")]),
    (
        "() -> (Tensor, int)",
        "std::tuple<Tensor, double> f()",
        [differs("returned value 2", "double", "int", "int64_t, or float in the schema")],
    ),
    (
        "(int a, int b) -> ()",
        "void f(double, bool)",
        [
            differs("argument 1, a,", "double", "int", "int64_t, or float in the schema"),
            differs("argument 2, b,", "bool", "int", "int64_t, or bool in the schema"),
        ],
    ),
    (
        "(Scalar s) -> ()",
        "void f(double)",
        [
            "argument 1, s, is Scalar in the schema, and torch's stable ABI passes no Scalar: write "
            "float or int in the schema"
        ],
    ),
    ("(Tensor x, int n) -> ()", "void f(Tensor)", ["the function takes 1 argument (Tensor), and the schema 2"]),
    (
        "(Tensor x) -> ()",
        "Tensor f(Tensor)",
        ["the function returns 1 value (Tensor), and the schema 0; expected void"],
    ),
    ("(Tensor x) -> Tensor", "void f(Tensor)", ["the function returns no value, and the schema 1; expected Tensor"]),
    (
        "() -> (Tensor, int)",
        "Tensor f()",
        ["the function returns 1 value (Tensor), and the schema 2; expected std::tuple<Tensor, int64_t>"],
    ),
]
ABBREVIATIONS = {
    "%s": "const std::vector<std::optional<Tensor>>&",
    "%i": "HeaderOnlyArrayRef<int64_t>",
    "%a": "std::optional<HeaderOnlyArrayRef<double>>",
    "%t": "std::vector<std::string>",
}


def source(cases):
    """Returns a library with an op `op_N` for each case, whose kernel `kernels::f_N` is never called."""
    functions, schemas, kernels = [], [], []
    for number, (schema, function, *_) in enumerate(cases):
        for short, full in ABBREVIATIONS.items():
            function = function.replace(short, full)
        functions.append(function.replace(" f(", f" f_{number}(") + ' { throw std::runtime_error("called"); }')
        text = f"op_{number}{schema}".replace("\n", "\\n").replace('"', '\\"')
        schemas.append(f'  m.def("{text}");')
        kernels.append(f'  m.impl("op_{number}", TORCH_BOX(&kernels::f_{number}));')
    lines = ["namespace kernels {", *functions, "}", "STABLE_TORCH_LIBRARY(@NAME@, m) {", *schemas, "}"]
    for key in ("CompositeExplicitAutograd", "Meta"):
        lines += [f"STABLE_TORCH_LIBRARY_IMPL(@NAME@, {key}, m) {{", *kernels, "}"]
    return HEADERS + "\n".join(lines) + "\n"


@pytest.fixture(params=["gcc", "zig"])
def is_portable(request):
    """Returns whether the libraries contain clang's libc++ and its spelling of types."""
    if request.param == "zig":
        pytest.importorskip("ziglang", reason="pip install ziglang")
        if not LONG:
            pytest.skip("`make test-long` builds with zig")
    return request.param == "zig"


def test_kernels_that_fit_their_schemas_load(tmp_path, is_portable):
    op = sample_ops.op_from_source(tmp_path, source([*EXACT, *CONVERTED]))(portable=is_portable).load()
    assert set(op.__names__) == {f"op_{number}" for number in range(len(EXACT) + len(CONVERTED))}
    left = {f"{op.__name__}::op_{number}" for number in range(len(EXACT), len(EXACT) + len(CONVERTED))}
    assert {line.partition("\t")[0] for line in described_kernels(op)} == left, "the others cost a load no check"


def described_kernels(op):
    """Returns the lines about the kernels that the library of an op leaves to the loader."""
    describe = ctypes.CDLL(op.__file__).opforge_describe
    describe.restype = ctypes.c_char_p
    return describe().decode().partition("\f")[2].splitlines()


def test_each_kernel_that_does_not_fit_is_named_with_what_to_write(tmp_path, is_portable):
    builder = sample_ops.op_from_source(tmp_path, source(WRONG))
    name = builder.name
    with pytest.raises(KernelSchemaError) as caught:
        builder(portable=is_portable).load()
    error = caught.value
    lines = source(WRONG).splitlines()
    for number, (schema, _function, expected) in enumerate(WRONG):
        line = lines.index(f'  m.impl("op_{number}", TORCH_BOX(&kernels::f_{number}));') + 1
        head, *texts = error.kernels[number].split("\n      ")
        assert head == f"kernels::f_{number} ({tmp_path}/{name}.cpp:{line}) for {name}::op_{number}{schema}:"
        assert texts == expected
    with_meta = 2 * len(WRONG)
    assert len(error.kernels) == with_meta
    assert str(error).startswith(f"{name}: {error.library} could not be loaded: torch would pass wrong values to its")
    assert not hasattr(getattr(torch.ops, name), "op_0"), "nothing is registered"


OTHERS = (
    HEADERS
    + """\
Tensor relu(const Tensor& x) { return x; }
void add(Tensor, Tensor, double) {}
void by_hand(StableIValue*, uint64_t, uint64_t) {}
template <typename A, typename B> B both(A, B y) { return y; }
namespace { Tensor plain(Tensor x, int64_t) { return x; } }
STABLE_TORCH_LIBRARY(@NAME@, m) {
  m.def("plain(Tensor x, int n) -> Tensor");
  m.def("by_hand(Tensor x) -> ()");
  m.def("both(float x, int y) -> int");
}
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CompositeExplicitAutograd, m) {
  void (*pointer)(StableIValue*, uint64_t, uint64_t) = TORCH_BOX(&plain);
  m.impl("plain", pointer);
  m.impl("by_hand", OPFORGE_BOXED(&by_hand));
  const auto kernel = TORCH_BOX((&both<double, int64_t>));
  m.impl("both", kernel).impl("both_of_another", kernel);
}
STABLE_TORCH_LIBRARY_IMPL(@NAME@, Meta, m) { m.impl("plain", TORCH_BOX(plain)); }
STABLE_TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("aten::relu", TORCH_BOX(&relu)); }
STABLE_TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { WRONG }
"""
)


def test_kernels_for_another_librarys_op_are_compared_with_its_schema(tmp_path):
    """What is not refused is registered, however a source spells it: by a pointer, boxed by hand, from a template."""
    wrong = 'm.impl("add.Tensor", TORCH_BOX(&add));'
    builder = sample_ops.op_from_source(tmp_path, OTHERS.replace("WRONG", wrong))
    name, path = builder.name, tmp_path / f"{builder.name}.cpp"
    with pytest.raises(KernelSchemaError) as caught:
        builder().load()
    schema = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
    line = path.read_text().splitlines().index(f"STABLE_TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {{ {wrong} }}")
    scalar = "is Scalar in the schema, and torch's stable ABI passes no Scalar: write float or int in the schema"
    returned = "the function returns no value, and the schema 1; expected Tensor"
    text = "\n      ".join([f"add ({path}:{line + 1}) for {schema}:", f"argument 3, alpha, {scalar}", returned])
    assert caught.value.kernels == (text,)
    path.write_text(path.read_text().replace(wrong, ""))
    op = builder().load()
    assert op.both(0.5, 7) == 7 and op.plain(torch.ones(1), 2).tolist() == [1]
    assert torch.ops.aten.relu(torch.tensor([-1.0])).tolist() == [0]
    path.write_text(
        path.read_text().replace("int64_t) { return x", "int64_t, bool) { return x").replace("int n)", "int n, bool b)")
    )
    assert builder().load().plain(torch.ones(1), 2, True).tolist() == [1], "another version has another schema"
    assert name in str(op)


TORCH_BLOCKS = """\
#include <torch/library.h>
at::Tensor f(const at::Tensor& x, double n) { return x; }
TORCH_LIBRARY(@NAME@, m) { m.def("f(Tensor x, int n) -> Tensor"); }
TORCH_LIBRARY_IMPL(@NAME@, CPU, m) { m.impl("f", &f); }
"""


@pytest.mark.long("compiles torch/library.h for 10 s; the facade's own comparison is in tests/compile/facade")
def test_what_torch_refuses_of_its_own_blocks_is_the_same_error(tmp_path):
    builder = sample_ops.op_from_source(tmp_path, TORCH_BLOCKS, abi="torch", extra_compile_args=["-O0"])
    name = builder.name
    with pytest.raises(KernelSchemaError) as caught:
        builder().load()
    types = "the function's types are (Tensor _0, float _1) -> Tensor _0"
    reason = "torch says: Type mismatch in argument 2: int vs float"
    head = f"({tmp_path}/{name}.cpp:4) for {name}::f(Tensor x, int n) -> Tensor:"
    assert caught.value.kernels == (f"{head}\n      {types}. {reason}",)
