"""The facade's operators are torch's declarations, with bodies that call the stable dispatcher or refuse."""

import re
from pathlib import Path

import pytest
import torch

from opforge.builders.facade import flags
from opforge.builders.facade.generate import dispatch_macros, emulated, generate, split

GENERATED = flags.INCLUDE / "opforge" / "facade" / "generated"
OPS = """struct TORCH_API {struct} {{
  static constexpr const char* name = "aten::{name}";
  static constexpr const char* overload_name = "{overload}";
}};
"""


def _generated(tmp_path: Path, functions: str, methods: str = "") -> list[str]:
    """Returns the lines for an include folder of torch with these declarations."""
    (tmp_path / "ATen" / "ops").mkdir(parents=True)
    (tmp_path / "ATen" / "core").mkdir()
    (tmp_path / "ATen" / "ops" / "twice.h").write_text(functions)
    (tmp_path / "ATen" / "core" / "TensorBody.h").write_text(methods)
    names = [
        ("twice", "twice", ""),
        ("twice_int", "twice", "int"),
        ("twice_out", "twice", "out"),
        ("twice_", "twice_", ""),
    ]
    text = "".join(OPS.format(struct=struct, name=name, overload=overload) for struct, name, overload in names)
    (tmp_path / "ATen" / "ops" / "twice_ops.h").write_text(text)
    lines = generate(tmp_path)
    return lines["methods.inc"] + lines["functions.inc"]


def test_a_function_calls_its_operator_with_torchs_defaults(tmp_path: Path) -> None:
    text = (
        "inline at::Tensor twice(const at::Tensor & self, at::IntArrayRef size={}, "
        "::std::optional<at::ScalarType> dtype=::std::nullopt) {\n"
        "    return at::_ops::twice_int::call(self, c10::fromIntArrayRefSlow(size), dtype);\n}\n"
    )
    assert _generated(tmp_path, text) == [
        "template <int Used = 0> Tensor twice(const Tensor& self, IntArrayRef size = {}, "
        "std::optional<ScalarType> dtype = std::nullopt) "
        '{ return ops<Used>::template call<Tensor>("aten::twice", "int", self, size, dtype); }'
    ]


OPTIONS = "options.layout_opt(), options.device_opt()"
PASSED = "facade::layout_to_pass(options), facade::device_to_pass(options)"


@pytest.mark.parametrize(
    ("first", "passed"),
    [("at::IntArrayRef size", PASSED), ("const at::Tensor & self", OPTIONS), ("at::TensorList list", OPTIONS)],
)
def test_a_factory_passes_no_device_and_layout_that_it_has_by_default(tmp_path: Path, first: str, passed: str) -> None:
    name = first.split()[-1]
    text = (
        f"inline at::Tensor twice({first}, at::TensorOptions options={{}}) {{\n"
        f"    return at::_ops::twice::call({name}, {OPTIONS});\n}}\n"
    )
    (line,) = _generated(tmp_path, text)
    assert f'call<Tensor>("aten::twice", "", {name}, {passed})' in line


def test_a_method_that_makes_a_tensor_passes_its_device_and_layout_as_its_own_tensor_has_the_defaults(
    tmp_path: Path,
) -> None:
    methods = (
        "  at::Tensor twice(at::IntArrayRef size, at::TensorOptions options={}) const;\n"
        "inline at::Tensor Tensor::twice(at::IntArrayRef size, at::TensorOptions options) const {\n"
        f"    return at::_ops::twice::call(const_cast<Tensor&>(*this), size, {OPTIONS});\n}}\n"
    )
    (line,) = _generated(tmp_path, "", methods)
    assert f'call<Tensor>("aten::twice", "", *this, size, {OPTIONS})' in line


def test_a_method_has_the_defaults_of_the_class(tmp_path: Path) -> None:
    methods = (
        "  at::Tensor & twice_(int64_t n=2) const;\n"
        "inline at::Tensor & Tensor::twice_(int64_t n) const {\n"
        "    return at::_ops::twice_::call(const_cast<Tensor&>(*this), n);\n}\n"
    )
    assert _generated(tmp_path, "", methods) == [
        "template <int Used = 0> Tensor& twice_(int64_t n = 2) const { "
        'ops<Used>::in_place("aten::twice_", "", *this, n); return const_cast<Tensor&>(*this); }'
    ]


def test_a_scalar_is_refused_with_its_reason(tmp_path: Path) -> None:
    text = (
        "inline at::Tensor twice(const at::Tensor & self, const at::Scalar & n) {\n"
        "    return at::_ops::twice::call(self, n);\n}\n"
    )
    assert _generated(tmp_path, text) == [
        "template <int Used = 0> Tensor twice(const Tensor& self, const Scalar& n) "
        '{ static_assert(Used < 0, OPFORGE_REFUSED("twice", "const Scalar&")); }'
    ]


@pytest.mark.parametrize(
    "declared",
    [
        "at::Tensor twice(at::Storage s)",
        "at::Tensor twice_symint(const at::Tensor & self)",
        "::std::tuple<at::Tensor,::std::vector<at::Tensor>> twice(const at::Tensor & self)",
    ],
)
def test_what_the_stable_abi_does_not_carry_is_not_declared(tmp_path: Path, declared: str) -> None:
    assert _generated(tmp_path, f"inline {declared} {{\n    return at::_ops::twice::call(self);\n}}\n") == []


def test_a_result_goes_to_the_out_argument(tmp_path: Path) -> None:
    text = (
        "inline at::Tensor & twice_out(at::Tensor & out, const at::Tensor & self) {\n"
        "    return at::_ops::twice_out::call(self, out);\n}\n"
    )
    assert _generated(tmp_path, text)[0].endswith(
        '{ ops<Used>::in_place("aten::twice", "out", self, out); return out; }'
    )


def test_commas_within_brackets_do_not_split() -> None:
    assert split("std::array<bool,3> a, b={1, 2}") == ["std::array<bool,3> a", "b={1, 2}"]
    assert split("") == []


def test_every_operator_that_is_called_is_this_torchs() -> None:
    schemas = {(schema.name, schema.overload_name) for schema in torch._C._jit_get_all_schemas()}
    folder = GENERATED.parent
    text = "".join(path.read_text() for path in [*GENERATED.glob("*.inc"), *folder.glob("*.h")])
    called = set(re.findall(r'"(aten::\w+)",\s+"(\w*)"', text))
    assert len(called) > 1500
    assert sorted(called - schemas) == []


def test_operators_with_a_scalar_that_others_compute_are_found() -> None:
    assert {"add_Tensor": 3, "mul__Scalar": 2, "clamp": 3, "full": 6}.items() <= emulated("scalars.h").items()
    text = (GENERATED / "methods.inc").read_text()
    assert "return ops<Used>::add_Tensor(*this, other, alpha);" in text


def test_operators_whose_last_bits_may_differ_are_listed_in_the_decision() -> None:
    near, names = emulated("near_scalars.h"), set()
    for path in GENERATED.glob("*.inc"):
        for name, struct in re.findall(r" (\w+)\([^{\n]*\{ return ops<Used>::(\w+)\(", path.read_text()):
            if struct in near:
                names.add(name.rstrip("_"))
    page = (Path(__file__).parents[4] / "docs" / "decisions" / "100-facade.md").read_text()
    listed = re.search(r"- Operators with a number whose last bits may differ(.*?) and\s+those of them", page, re.S)
    assert listed
    assert set(re.findall(r"`(\w+)`", listed[1])) == names


def test_the_macros_of_dispatch_are_the_generators() -> None:
    assert (GENERATED / "dispatch.inc").read_text().splitlines() == dispatch_macros()
    assert any(
        line.startswith("#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND8(S1, S2, S3") for line in dispatch_macros()
    )


def test_a_dispatch_macro_has_a_name_of_torchs() -> None:
    header = (Path(torch.__file__).parent / "include" / "ATen" / "Dispatch.h").read_text()
    theirs = set(re.findall(r"#define (AT_DISPATCH_\w+)", header))
    ours = set(re.findall(r"#define (AT_DISPATCH_\w+)", "\n".join(dispatch_macros())))
    # Older sources have these, and no torch that is supported does.
    older = {
        f"AT_DISPATCH_{case}{group}_AND_HALF"
        for case in ("", "CASE_")
        for group in ("ALL_TYPES", "ALL_TYPES_AND_COMPLEX")
    }
    assert ours - theirs == older
    left = {name for name in theirs - ours if "QINT" not in name and "BIT_TYPES" not in name}
    assert left <= {"AT_DISPATCH_SWITCH", "AT_DISPATCH_CASE", "AT_DISPATCH_INDEX_TYPES", "AT_DISPATCH_V2"}
