"""Sources on the stable ABI as other projects write them: macros as names, helpers, modules, hand-boxed kernels."""

from __future__ import annotations

import logging
import os
import platform
import subprocess

import pytest
from support import sample_ops, text_files
from support.sample_ops import STABLE_HEADERS

import opforge
from opforge.builders.declaration.kernel_roots import OPFORGE_ABI
from opforge.errors import LoadError

torch = pytest.importorskip("torch", reason="pip install torch")
pytestmark = pytest.mark.usefixtures("precompiled")

EMPTY_MODULE = """\
#pragma once
#include <Python.h>
#define JOINED_(a, b) a##b
#define JOINED(a, b) JOINED_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)
#define EMPTY_MODULE(name)                                                                           \\
  PyMODINIT_FUNC JOINED(PyInit_, name)() {                                                           \\
    static PyModuleDef definition = {PyModuleDef_HEAD_INIT, TEXT(name), nullptr, 0, nullptr};        \\
    return PyModule_Create(&definition);                                                             \\
  }
"""
"""A header with what kernels of the hub and of vLLM have, so that `import` opens their libraries."""
DOUBLED = """\
static int64_t doubled(int64_t x) { return 2 * x; }
STABLE_TORCH_LIBRARY_FRAGMENT(TORCH_EXTENSION_NAME, m) { m.def("doubled(int x) -> int"); }
STABLE_TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, m) {
  m.impl("doubled", TORCH_BOX(&doubled));
}
"""


def write(folder, text, headers=STABLE_HEADERS):
    """Writes a source and the header of the empty module. Returns an unused name and the source's path."""
    name = sample_ops.unique_name("agnostic")
    text_files.write(folder, "empty_module.h", EMPTY_MODULE)
    return name, text_files.write(folder, f"{name}.cpp", headers + text.replace("@NAME@", name))


def test_a_source_or_a_builder_may_define_the_extensions_name(tmp_path, caplog):
    for define_macros, text in (
        ([("TORCH_EXTENSION_NAME", "@NS@")], DOUBLED),
        ([], "#undef TORCH_EXTENSION_NAME\n#define TORCH_EXTENSION_NAME @NS@\n" + DOUBLED),
    ):
        namespace = sample_ops.unique_name("defined")
        macros = [(macro, value.replace("@NS@", namespace)) for macro, value in define_macros]
        name, path = write(tmp_path, text.replace("@NS@", namespace))
        assert (
            opforge.load(name, path, define_macros=macros).doubled(4) == 8 == getattr(torch.ops, namespace).doubled(4)
        )
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not warnings, "a second definition on the command line would be a warning"


def test_blocks_are_named_by_torchs_macro_and_an_empty_module_from_a_header_needs_no_include_folder(tmp_path):
    text = '#include "empty_module.h"\n' + DOUBLED + "EMPTY_MODULE(TORCH_EXTENSION_NAME)\n"
    name, path = write(tmp_path, text)
    op = opforge.load(name, path)
    assert op.doubled(4) == 8 == getattr(torch.ops, name).doubled(4)
    assert f"PyInit_{name}" in op.__entry__.record["exports"] and op.__entry__.record["requires"] == {}
    read = [file[1] for file in op.__entry__.build()["inputs"]["files"] if "torch/headeronly/" in file[1]]
    assert read == [], "gcc has taken the precompiled header, by which these tests are cheap"
    cls = sample_ops.builder_class(tmp_path, name)
    assert cls().load().doubled(5) == 10


INTRINSICS = """\
#include <torch/headeronly/util/Half.h>
#include <immintrin.h>
#ifdef __F16C__
static bool differ(unsigned short bits) {
  const float value = c10::Half(bits, c10::Half::from_bits()), expected = _cvtsh_ss(bits);
  return std::memcmp(&value, &expected, sizeof value) != 0 || c10::Half(value).x != _cvtss_sh(value, 0);
}
#else
static bool differ(unsigned short) { return false; }
#endif
static int64_t different() {
  int64_t count = 0;
  for (int bits = 0; bits < 0x10000; ++bits) count += differ(bits);
  return count;
}
STABLE_TORCH_LIBRARY(TORCH_EXTENSION_NAME, m) { m.def("different() -> int"); }
STABLE_TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, m) {
  m.impl("different", TORCH_BOX(&different));
}
"""
"""Compares the conversions of torch's halves with those of the processor."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="<immintrin.h> is of x86")
def test_halves_are_converted_by_the_processor_and_intrinsics_are_read_by_the_sources_that_include_them(tmp_path):
    name, path = write(tmp_path, INTRINSICS)
    assert opforge.load(name, path).different() == 0
    torchs = os.path.join(os.path.dirname(torch.__file__), "include")
    include = ("-I", os.path.join(OPFORGE_ABI.path, OPFORGE_ABI.include), "-isystem", torchs)
    header = tmp_path / "half.cpp"
    header.write_text("#include <torch/headeronly/util/Half.h>\n")
    command = ("g++", "-march=x86-64-v3", *include, "-M", str(header))
    assert "avxintrin.h" not in subprocess.run(command, capture_output=True, text=True, check=True).stdout


HELPERS = """\
static int64_t first(int64_t x) { return x + 1; }
static int64_t second(int64_t x) { return x + 2; }
void define(torch::stable::detail::StableLibrary& m, const char* schema) { m.def(schema); }
template <typename Library> void implement(Library& library) {
  library.impl("first", TORCH_BOX(&first)).impl("second", TORCH_BOX(&second));
}
void define_all(torch::stable::detail::StableLibrary& m) {
  define(m, "first(int x) -> int");
  define(m, "second(int x) -> int");
}
STABLE_TORCH_LIBRARY(@NAME@, m) { define_all(m); }
#define BLOCK(ns, key, m) STABLE_TORCH_LIBRARY_IMPL(ns, key, m)
#define KEY CompositeExplicitAutograd
BLOCK(@NAME@, KEY, m) { implement(m); }
"""


def test_helpers_take_torchs_class_and_a_macro_names_the_key(tmp_path):
    name, path = write(tmp_path, HELPERS)
    op = opforge.load(name, path)
    assert (op.first(1), op.second(1)) == (2, 3)
    assert {"first", "second"} <= {*dir(op)}


def test_a_block_written_without_a_macro_waits_for_the_loader_too(tmp_path):
    text = """\
static int64_t same(int64_t x) { return x; }
namespace stable = torch::stable::detail;
static void define(stable::StableLibrary& m) { m.def("same(int x) -> int"); }
static void implement(stable::StableLibrary& m) { m.impl("same", TORCH_BOX(&same)); }
static stable::StableTorchLibraryInit a(stable::StableLibrary::Kind::DEF, &define, "@NAME@", nullptr, "a.cpp", 1);
static stable::StableTorchLibraryInit b(
    stable::StableLibrary::Kind::IMPL, &implement, "@NAME@", "CompositeExplicitAutograd", "a.cpp", 2);
"""
    name, path = write(tmp_path, text)
    assert opforge.load(name, path).same(7) == 7


AGNOSTIC = {
    "boxed.cpp": """\
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <optional>
using torch::stable::Tensor;
Tensor shifted(Tensor x, double by) {
  Tensor y = torch::stable::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i)
    static_cast<float*>(y.mutable_data_ptr())[i] = static_cast<const float*>(x.const_data_ptr())[i] + float(by);
  return y;
}
void boxed_shifted(StableIValue* stack, uint64_t num_args, uint64_t num_outputs) {
  Tensor y = shifted(torch::stable::detail::to<Tensor>(stack[0]), torch::stable::detail::to<double>(stack[1]));
  stack[0] = torch::stable::detail::from(y);
}
std::tuple<Tensor, std::optional<Tensor>, int64_t> several(Tensor x, std::optional<Tensor> y, bool flag) {
  return {x, y, flag ? x.dim() : -1};
}
STABLE_TORCH_LIBRARY(LIBRARY, m) {
  m.def("shifted(Tensor x, float by=1.0) -> Tensor");
  m.def("several(Tensor x, Tensor? y, bool flag) -> (Tensor, Tensor?, int)");
}
STABLE_TORCH_LIBRARY_IMPL(LIBRARY, CPU, m) { m.impl("shifted", &boxed_shifted); }
STABLE_TORCH_LIBRARY_IMPL(LIBRARY, CompositeExplicitAutograd, m) { m.impl("several", TORCH_BOX(&several)); }
""",
    "lists.cpp": """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/HeaderOnlyArrayRef.h>
#include <string>
#include <string_view>
#include <vector>
using torch::stable::Tensor;
void zero_all(torch::headeronly::HeaderOnlyArrayRef<Tensor> tensors) {
  for (const Tensor& tensor : tensors) torch::stable::zero_(const_cast<Tensor&>(tensor));
}
std::tuple<std::vector<std::string>, int64_t> names(const std::string& a, std::string_view b, std::string& c) {
  return {{a, std::string(b), c}, int64_t(a.size())};
}
Tensor reshaped(const Tensor& x, std::vector<int64_t> shape) {
  return torch::stable::new_empty(x, shape, torch::headeronly::ScalarType::Double);
}
STABLE_TORCH_LIBRARY_FRAGMENT(LIBRARY, m) {
  m.def("zero_all(Tensor(a!)[] tensors) -> ()");
  m.def("names(str a, str b, str c) -> (str[], int)");
}
STABLE_TORCH_LIBRARY_FRAGMENT(LIBRARY, m) { m.def("reshaped(Tensor x, int[] shape) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(LIBRARY, CompositeExplicitAutograd, m) {
  m.impl("zero_all", TORCH_BOX(&zero_all));
  m.impl("names", TORCH_BOX(&names));
  m.impl("reshaped", TORCH_BOX(&reshaped));
}
""",
    "dispatch.cpp": """\
#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/Dispatch_v2.h>
#include <torch/headeronly/core/TensorAccessor.h>
#include <torch/headeronly/util/Exception.h>
using torch::stable::Tensor;
double total(const Tensor& x) {
  STD_TORCH_CHECK(x.dim() == 1, "total: one dimension expected, not ", x.dim());
  STD_TORCH_CHECK(x.device() == torch::stable::Device(torch::headeronly::DeviceType::CPU), "total: on the CPU");
  double sum = 0;
  THO_DISPATCH_V2(x.scalar_type(), "total", AT_WRAP(([&] {
    torch::headeronly::HeaderOnlyTensorAccessor<scalar_t, 1> at(
        reinterpret_cast<scalar_t*>(x.data_ptr()), x.sizes().data(), x.strides().data());
    for (int64_t i = 0; i < x.size(0); ++i) sum += static_cast<double>(at[i]);
  })), AT_EXPAND(AT_FLOATING_TYPES));
  return sum;
}
STABLE_TORCH_LIBRARY_FRAGMENT(LIBRARY, m) { m.def("total(Tensor x) -> float"); }
STABLE_TORCH_LIBRARY_IMPL(LIBRARY, CompositeExplicitAutograd, m) { m.impl("total", TORCH_BOX(&total)); }
""",
}


def test_several_sources_whose_namespace_is_a_macro_are_one_op(tmp_path):
    name = sample_ops.unique_name("agnostic")
    paths = [text_files.write(tmp_path, file, text) for file, text in AGNOSTIC.items()]
    op = opforge.load(name, paths, define_macros={"LIBRARY": name})
    assert op.shifted(torch.ones(2)).tolist() == [2, 2] and op.shifted(torch.ones(2), 0.5).tolist() == [1.5, 1.5]
    x = torch.ones(2, 3)
    assert op.several(x, None, True)[1:] == (None, 2)
    assert op.several(x, x, False)[1] is not None
    tensors = [torch.ones(2), torch.ones(3)]
    op.zero_all(tensors)
    assert not any(map(torch.any, tensors))
    assert op.names("a", "b", "c") == (["a", "b", "c"], 1)
    assert op.reshaped(x, [4]).dtype is torch.float64
    assert op.total(torch.arange(4.0, dtype=torch.float64)[::2]) == 2
    with pytest.raises(RuntimeError, match="total: one dimension expected, not 2"):
        op.total(x)
    getattr(torch.ops, name).total.default(torch.ones(1))


def test_an_exception_in_a_block_is_an_error_and_registers_nothing(tmp_path):
    thrown = '{ throw std::runtime_error("it cannot be done"); m.impl'
    name, path = write(tmp_path, "#include <stdexcept>\n" + DOUBLED.replace("{\n  m.impl", thrown))
    with pytest.raises(LoadError, match="it cannot be done"):
        opforge.load(name, path)
    assert not hasattr(getattr(torch.ops, name), "doubled")
    text_files.write(tmp_path, os.path.basename(path), STABLE_HEADERS + DOUBLED)
    assert opforge.load(name, path).doubled(2) == 4


def test_a_kernel_for_torchs_own_namespace_keeps_that_name_in_a_later_version(tmp_path):
    text = """\
using torch::stable::Tensor;
static int64_t version() { return VERSION; }
static Tensor shape_of(Tensor x) { return x; }
STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("version() -> int"); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CompositeExplicitAutograd, m) { m.impl("version", TORCH_BOX(&version)); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@_others, CPU, m) { m.impl("shape_of", TORCH_BOX(&shape_of)); }
"""
    name, path = write(tmp_path, text)
    others = torch.library.Library(f"{name}_others", "DEF")
    others.define("shape_of(Tensor x) -> Tensor")
    first = opforge.load(name, path, define_macros={"VERSION": "1"})
    second = opforge.load(name, path, define_macros={"VERSION": "2"})
    assert (first.version(), second.version()) == (1, 2)
    assert getattr(torch.ops, f"{name}_others").shape_of(torch.ones(1)).tolist() == [1]
    suffixed = f"{name}_others{second.__entry__.suffix}"
    assert not [kernel for kernel in torch._C._dispatch_get_registrations_for_dispatch_key("CPU") if suffixed in kernel]
    others._destroy()
