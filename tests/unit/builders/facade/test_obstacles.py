"""Every line that keeps a source from one binary is found, and nothing in comments and strings is."""

from pathlib import Path

import pytest

from opforge.builders.facade.obstacles import (
    OF_CUDA,
    Kind,
    covered,
    report,
    scan,
    with_defined,
    without_comments,
    without_regions,
)


def _scan(tmp_path: Path, text: str, name: str = "op.cpp") -> list[tuple[int, str, Kind]]:
    path = tmp_path / name
    path.write_text(text)
    return [(entry.line, entry.construct, entry.kind) for entry in scan([path])]


def test_a_source_of_functions_has_no_obstacle(tmp_path: Path) -> None:
    text = """
#include <torch/extension.h>
torch::Tensor twice(torch::Tensor x) { TORCH_CHECK(x.dim() > 0); return x * 2 + x.clamp(0, 1); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice, py::arg("x")); }
"""
    assert _scan(tmp_path, text) == []
    assert report([]) == "nothing found that keeps these sources from one binary for every torch and Python"


@pytest.mark.parametrize(
    ("line", "construct", "kind"),
    [
        ("#if TORCH_VERSION_MINOR >= 12", "TORCH_VERSION_MINOR", Kind.NEVER),
        ("op.redispatch(keys, x);", "redispatch", Kind.NEVER),
        ("auto op = c10::Dispatcher::singleton().findOp(n);", "Dispatcher::singleton().findOp", Kind.NEVER),
        ("at::autocast::clear_cache();", "autocast::clear_cache", Kind.NEVER),
        ("struct S : torch::CustomClassHolder {};", "CustomClassHolder", Kind.NEVER),
        ("torch::nn::Linear layer(3, 4);", "torch::nn::", Kind.NEVER),
        ("torch::jit::script::Module m;", "torch::jit::script", Kind.NEVER),
        ("auto s = x.storage().data();", "storage().data", Kind.NEVER),
        ("y.grad_fn();", "grad_fn", Kind.NEVER),
        ("#include <THC/THC.h>", "#include <THC/THC.h>", Kind.NEVER),
        ("at::globalContext().allowTF32CuBLAS();", "globalContext().allowTF32CuBLAS", Kind.NEVER),
        ("auto g = at::check_generator<at::CPUGeneratorImpl>(gen);", "CPUGeneratorImpl", Kind.NEWER),
        ("at::Generator g = at::detail::createCPUGenerator();", "createCPUGenerator", Kind.NEWER),
        ("at::native::resize_output(x, {2});", "at::native::resize_output", Kind.NEVER),
        ("py::bind_vector<Lengths>(m, 1);", "py::bind_vector", Kind.LATER),
        ('py::class_<A>(m, "A", py::metaclass(type));', "py::metaclass", Kind.LATER),
        ("counter.def_buffer(view);", "def_buffer", Kind.LATER),
        ("PYBIND11_NUMPY_DTYPE(Point, x, y);", "PYBIND11_NUMPY_DTYPE", Kind.LATER),
        ("auto h = at::cuda::getCurrentCUDASparseHandle();", "at::cuda::getCurrentCUDASparseHandle", Kind.NEVER),
        ("auto f = py::vectorize(g);", "py::vectorize", Kind.LATER),
        ("auto m = at::cuda::getPinnedMemoryAllocator();", "at::cuda::getPinnedMemoryAllocator", Kind.LATER),
        ("c10::cuda::CUDACachingAllocator::emptyCache();", "c10::cuda::CUDACachingAllocator", Kind.LATER),
        ("auto y = torch::histc(x, 5);", "histc", Kind.LATER),
        ("auto y = x.histc(5);", "histc", Kind.LATER),
        ("auto y = at::range(0, 5);", "range", Kind.LATER),
        ("#include <ATen/native/TensorIterator.h>", "#include <ATen/native/TensorIterator.h>", Kind.NEVER),
        ("#include <ATen/cuda/CUDABlas.h>", "#include <ATen/cuda/CUDABlas.h>", Kind.LATER),
    ],
)
def test_a_construct_is_found_with_its_line(tmp_path: Path, line: str, construct: str, kind: Kind) -> None:
    assert (3, construct, kind) in _scan(tmp_path, f"#include <torch/extension.h>\n\n{line}\n")


def test_a_method_of_another_class_is_no_operator_of_torchs_namespace(tmp_path: Path) -> None:
    assert _scan(tmp_path, "auto n = state.range(0) + dim->range() + graph.threshold_backward(x);\n") == []


def test_a_class_and_an_enumeration_are_no_obstacle(tmp_path: Path) -> None:
    assert _scan(tmp_path, 'py::class_<Counter>(m, "Counter");\npy::enum_<Color>(m, "Color");\n') == []


def test_names_of_cuda_that_the_facade_has_are_no_obstacles(tmp_path: Path) -> None:
    text = """#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
void f(at::Tensor x) {
  const at::cuda::OptionalCUDAGuard guard(at::device_of(x));
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
}
"""
    assert _scan(tmp_path, text) == []


def test_all_lines_are_found_and_not_the_first_alone(tmp_path: Path) -> None:
    found = _scan(tmp_path, "x.use_count();\n\ny.key_set(); torch::nn::Linear l;\n")
    assert [(line, construct) for line, construct, _ in found] == [(1, "use_count"), (3, "key_set"), (3, "torch::nn::")]


@pytest.mark.parametrize(
    "text",
    [
        "// x.use_count()",
        "/* torch::nn::Linear\n x.use_count() */",
        'auto s = "x.use_count()";',
        'auto s = R"(py::staticmethod)";',
    ],
)
def test_comments_and_strings_are_no_code(tmp_path: Path, text: str) -> None:
    assert _scan(tmp_path, text) == []


def test_an_apostrophe_in_a_number_begins_no_character() -> None:
    text = "int n = 1'000'000; at::Generator g; char c = 'x', d = u8'y';"
    assert without_comments(text) == "int n = 1'000'000; at::Generator g; char c = '', d = u8'';"


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("ifdef CPU_ONLY", "ab"),
        ("ifndef CPU_ONLY", "cd"),
        ("if defined(CPU_ONLY) || A", "ab"),
        ("if CPU_ONLY && A", "abcd"),
        ("if !defined(CPU_ONLY) && A", "cd"),
        ("if !CPU_ONLY || A", "abcd"),
        ("ifdef CPU_ONLY_AT_ALL", "abcd"),
    ],
)
def test_what_is_compiled_only_without_a_macro_that_is_defined_is_left_out(condition: str, kept: str) -> None:
    lines = with_defined(f"#{condition}\na\nb\n#else\nc\nd\n#endif", "CPU_ONLY").split("\n")
    assert len(lines) == 7 and "".join(line for line in lines if not line.startswith("#")) == kept


def test_lines_keep_their_numbers_without_comments() -> None:
    assert without_comments('/* a\nb */ x;\n"c" // d\n#include "e.h"') == '\n x;\n""  \n#include "e.h"'


def test_a_header_of_the_source_is_scanned_too(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own.h").write_text("\nstruct S : torch::CustomClassHolder {};\n")
    (tmp_path / "op.cpp").write_text('#include "own/own.h"\n#include <elsewhere.h>\n')
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "elsewhere.h").write_text("torch::nn::Linear l;\n")
    found = scan([tmp_path / "op.cpp"], [tmp_path / "include"])
    assert [(entry.path.name, entry.line) for entry in found] == [("elsewhere.h", 1), ("own.h", 2)]


def test_a_header_beside_the_file_that_includes_it_is_the_projects_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "own.h").write_text("auto n = x.use_count();\n")
    text = '#include "torch/own.h"\n#include <torch/other.h>\n'
    assert _scan(tmp_path, text) == [(2, "#include <torch/other.h>", Kind.LATER), (1, "use_count", Kind.NEVER)]


def test_a_source_in_cuda_is_read_as_one_in_cxx(tmp_path: Path) -> None:
    assert _scan(tmp_path, "int x;\n", "op.cu") == []
    assert _scan(tmp_path, "at::CPUGeneratorImpl g;\n", "op.cu") == [(1, "CPUGeneratorImpl", Kind.NEWER)]


def test_the_report_has_a_line_for_each_and_how_many_there_are(tmp_path: Path) -> None:
    (tmp_path / "op.cpp").write_text("auto n = x.use_count();\npy::staticmethod all;\n")
    lines = report(scan([tmp_path / "op.cpp"])).splitlines()
    assert lines[0] == (
        f"{tmp_path}/op.cpp:1: use_count: never: the stable ABI shows a tensor's sizes, dtype and memory, and nothing "
        "of its storage or implementation"
    )
    assert lines[-1] == "2 lines: 1 never, 1 not yet"


@pytest.mark.parametrize("condition", ["#ifdef _WIN32", "#if defined(_MSC_VER)", "#if 0", "#if 0 && X"])
def test_what_no_build_on_linux_compiles_is_no_obstacle(tmp_path: Path, condition: str) -> None:
    text = f"{condition}\npy::staticmethod a;\n#elif X\npy::staticmethod b;\n#else\npy::staticmethod c;\n#endif\n"
    assert [line for line, _, _ in _scan(tmp_path, text)] == [4, 6]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("torch/extension.h", True), ("torch/headeronly/util/Half.h", True), ("ATen/native/Pool.h", False)],
)
def test_a_header_is_covered_or_not(name: str, expected: bool) -> None:
    assert covered(name) is expected


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("#ifdef WITH_CUDA\na\n#else\nb\n#endif\nc", "bc"),
        ("#ifndef WITH_CUDA\na\n#else\nb\n#endif\nc", "ac"),
        ("#if defined(MMCV_WITH_CUDA) && X\na\n#elif Y\nb\n#endif\nc", "bc"),
        ("#ifdef WITH_CUDA\na\n#elif Y\nb\n#else\nd\n#endif\nc", "bdc"),
        ("#ifndef WITH_CUDA\na\n#elif Y\nb\n#else\nd\n#endif\nc", "ac"),
        ("#if !defined(__CUDACC__)\na\n#endif\nc", "ac"),
        ("#if defined(__CUDACC__) || defined(WITH_HIP)\na\n#else\nb\n#endif\nc", "bc"),
        ("#if defined(WITH_CUDA) || X\na\n#else\nb\n#endif\nc", "abc"),
        ("#if !defined(WITH_CUDA) && !defined(WITH_HIP)\na\n#else\nb\n#endif\nc", "ac"),
        ("#if X\n#ifdef USE_ROCM\na\n#endif\nb\n#else\nd\n#endif\nc", "bdc"),
        ("#if X\na\n#else\nb\n#endif\nc", "abc"),
        ("#endif\nc", "c"),
    ],
)
def test_a_region_of_cuda_is_left_out_and_lines_keep_their_numbers(text: str, kept: str) -> None:
    lines = without_regions(text, OF_CUDA).split("\n")
    assert len(lines) == text.count("\n") + 1
    assert "".join(line for line in lines if line and line[0] != "#") == kept


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("auto g = at::check_generator<at::CPUGeneratorImpl>(gen);", "draw numbers by an operator, as in at::rand("),
        ("py::bind_map<Table>(m, 1);", "declare the container by PYBIND11_MAKE_OPAQUE, and register it by py::class_"),
        (
            "matrix.def_buffer(view);",
            "a method that returns a py::array_t of the memory, or a tensor by torch::from_blob",
        ),
        ("PYBIND11_NUMPY_DTYPE(Point, x, y);", "pass one array for each field of the structure"),
    ],
)
def test_a_construct_that_can_be_written_otherwise_names_what_to_write(tmp_path: Path, line: str, advice: str) -> None:
    (tmp_path / "op.cpp").write_text(line)
    assert advice in report(scan([tmp_path / "op.cpp"]))


@pytest.mark.parametrize(
    "line",
    [
        'py::register_exception<Refused>(m, "RefusedError");',
        "PYBIND11_OVERRIDE(int, Base, f);",
        "auto seeds = at::cuda::philox::unpack(state);",
        "at::vec::Vectorized<float> v;",
        'static py::exception<Refused> refused(m, "RefusedError");',
        'py::class_<Both, First, Second>(m, "Both", py::multiple_inheritance());',
        'PYBIND11_TYPE_CASTER(Pair, const_name("Pair"));',
        "PYBIND11_MAKE_OPAQUE(std::vector<int64_t>);",
        "at::native::fastAtomicAdd(sums, i, n, value, true);",
        "#include <ATen/native/cuda/KernelUtils.cuh>",
        "float* p = x.storage() ? x.data_ptr<float>() : nullptr;",
        "c10::cuda::MaybeSetDevice(x.get_device());",
        "py::make_key_iterator(table.begin(), table.end());",
    ],
)
def test_what_the_facade_has_is_no_obstacle(tmp_path: Path, line: str) -> None:
    assert _scan(tmp_path, line) == []
