"""Names that sources of the field use beside operators: each gives what torch's own headers and pybind11 give."""

import itertools
import math
import warnings
from collections import UserDict
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace, TracebackType

import pytest
import torch
from facade.compiling import compile_library
from facade.module_record import load
from torch._subclasses.fake_tensor import FakeTensorMode

SOURCE = Path(__file__).parents[2] / "support" / "facade" / "names_source.cpp"
IN_INFERENCE = "2.13"
"""The torch whose errors' texts the facade gets, and so knows this one by its text."""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    library = tmp_path_factory.mktemp("names") / "facade_names.so"
    compile_library("facade", "facade_names", [SOURCE], library, ["-O0"])
    return load(library, "facade_names")


@pytest.mark.parametrize(
    ("what", "error", "text"),
    [
        ("equal", RuntimeError, "Check failed: x.dim() == 9 (2 vs. 9). "),
        ("greater", RuntimeError, "Check failed: x.dim() > 1 + 1 (2 vs. 2). "),
        ("thrown", ValueError, "thrown"),
        ("list", RuntimeError, "list 1 2"),
        ("long list", RuntimeError, " ".join(["7"] * 100) + " ..."),
    ],
)
def test_a_check_has_torchs_text(module: ModuleType, what: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as raised:
        module.text(torch.ones(2, 3), what)
    assert type(raised.value) is error and str(raised.value) == text


UNSET = "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"
QUANTIZED = "quantized"
"""In the place of a tensor that torch warns of when it is made."""
SHOWN: dict[str, tuple[torch.Tensor | str, str, str]] = {
    "type": (torch.ones(2), "type", "CPUFloatType"),
    "type of complex": (torch.ones(2, dtype=torch.complex64), "type", "CPUComplexFloatType"),
    "type of sparse": (torch.ones(2).to_sparse(), "type", "SparseCPUFloatType"),
    "type of meta": (torch.ones(2, device="meta", dtype=torch.bfloat16), "type", "MetaBFloat16Type"),
    "type of quantized": (QUANTIZED, "type", "QuantizedCPUQInt8Type"),
    "options": (torch.ones(2), "options", f"TensorOptions(dtype=float, device=cpu, layout=Strided, {UNSET}"),
    "options of uint16": (
        torch.ones(2, dtype=torch.uint16, device="meta"),
        "options",
        f"TensorOptions(dtype=short unsigned int, device=meta, layout=Strided, {UNSET}",
    ),
    "options of quantized": (
        QUANTIZED,
        "options",
        f"TensorOptions(dtype=c10::qint8, device=cpu, layout=Strided, {UNSET}",
    ),
    "own options": (
        torch.ones(2),
        "own options",
        "TensorOptions(dtype=c10::Half, device=cuda:1, layout=Strided (default), requires_grad=true, "
        "pinned_memory=false (default), memory_format=ChannelsLast)",
    ),
    "no options": (
        torch.ones(2),
        "no options",
        "TensorOptions(dtype=float (default), device=cpu (default), layout=Strided (default), requires_grad=false "
        "(default), pinned_memory=false, memory_format=(nullopt))",
    ),
}


@pytest.mark.parametrize("case", SHOWN)
def test_a_type_and_options_have_torchs_text(module: ModuleType, case: str) -> None:
    x, what, text = SHOWN[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8) if x is QUANTIZED else x
    assert module.text(given, what) == text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (0, "2 (e.g. {1, 2}), but got sub-list {3} with sizes: 1"),
        (1, "2 1 (e.g. {{1.5}, {2}}), but got sub-list {{3}} with sizes: 1 1"),
        (2, "1 (e.g. {1}), but got sub-list {1, 0} with sizes: 2"),
        (3, "2 2 1 (e.g. {{{1}, {2}}, {{1}, {2}}}), but got sub-list {{{1}, {2}}} with sizes: 1 2 1"),
    ],
)
def test_lists_of_several_sizes_are_refused_with_torchs_text(module: ModuleType, kind: int, text: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        module.ragged(kind)
    assert str(raised.value) == "Expected all sub-lists to have sizes: " + text


def test_the_options_of_a_factory_are_given_one_by_one(module: ModuleType) -> None:
    x = torch.ones(2, 2, dtype=torch.half)
    expected = [
        torch.zeros(2, 3, dtype=torch.double),
        torch.zeros(2, dtype=torch.half),
        torch.ones(2, 2, dtype=torch.half),
        torch.full((2,), 3, dtype=torch.half),
        torch.zeros(2, 2, dtype=torch.int32),
        torch.arange(3, dtype=torch.half),
    ]
    for made, wanted in zip(module.separately(x), expected, strict=True):
        assert made.dtype == wanted.dtype and torch.equal(made, wanted)


@pytest.mark.parametrize(
    ("what", "error", "is_torchs"),
    [
        ("check", RuntimeError, True),
        ("index", IndexError, True),
        ("value", ValueError, True),
        ("linalg", RuntimeError, True),
        ("own", RuntimeError, False),
    ],
)
def test_an_error_of_torchs_names_types_as_python_does(
    module: ModuleType, what: str, error: type[Exception], is_torchs: bool
) -> None:
    for call in (module.refused, torch.ops.facade_names.refused):
        with pytest.raises(error) as raised:
            call(torch.ones(2), what)
        names = "torch.FloatTensor", "torch.cuda.sparse.LongTensor"
        names = names if is_torchs else ("CPUFloatType", "SparseCUDALongType")
        assert str(raised.value) == f"a {names[0]} and a {names[1]}"


def test_a_function_of_autograd_has_torchs_name(module: ModuleType) -> None:
    x = torch.ones(2, requires_grad=True)
    assert module.doubles(x).grad_fn.name() == "torch::autograd::CppNode<inner::Doubles<int> >"
    assert module.saves(x, x, x).grad_fn.name() == "torch::autograd::CppNode<Saves>"


LAST, LAST_3D = torch.channels_last, torch.channels_last_3d
FORMATS = {
    "two dimensions": (torch.ones(2, 3), "Contiguous"),
    "contiguous": (torch.ones(2, 3, 4, 5), "Contiguous"),
    "channels last": (torch.ones(2, 3, 4, 5).to(memory_format=LAST), "ChannelsLast"),
    "one channel": (torch.ones(2, 1, 4, 5).to(memory_format=LAST), "ChannelsLast"),
    "one pixel": (torch.ones(2, 3, 1, 1).to(memory_format=LAST), "ChannelsLast"),
    "some channels": (torch.ones(2, 8, 4, 5).to(memory_format=LAST)[:, :3], "ChannelsLast"),
    "every second row": (torch.ones(2, 3, 8, 5).to(memory_format=LAST)[:, :, ::2], "ChannelsLast"),
    "three dimensions": (torch.ones(2, 3, 4, 5, 6).to(memory_format=LAST_3D), "ChannelsLast3d"),
    "expanded": (torch.ones(1, 3, 1, 1).expand(2, 3, 4, 5), "Contiguous"),
    "empty": (torch.ones(0, 3, 4, 5).to(memory_format=LAST), "Contiguous"),
}


@pytest.mark.parametrize("case", FORMATS)
def test_the_suggested_memory_format_is_torchs(module: ModuleType, case: str) -> None:
    x, expected = FORMATS[case]
    assert module.text(x) == f"Strided {expected}"


def test_a_sparse_layout_is_printed_by_its_name(module: ModuleType) -> None:
    assert module.text(torch.ones(2, 3).to_sparse()) == "Sparse Contiguous"


@pytest.mark.parametrize("count", [3, 0])
def test_memory_is_freed_with_its_tensor(module: ModuleType, count: int) -> None:
    if count and not torch.__version__ >= "2.11":
        pytest.skip("from_blob with a deleter needs torch 2.11")
    before = module.freed()
    made = module.owned(count)
    assert made.tolist() == [7] * count
    del made
    assert module.freed() == before + 1


@pytest.mark.parametrize("form", ["rows", "columns", "every second"])
def test_an_accessor_steps_by_the_strides(module: ModuleType, form: str) -> None:
    x = torch.arange(24.0).reshape(4, 6)
    x = {"rows": x, "columns": x.t(), "every second": x[:, ::2]}[form]
    assert module.elements(x) == [x[0, 1].item()] * 4


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_an_index_has_the_size_of_its_dtype(module: ModuleType, dtype: torch.dtype) -> None:
    assert module.index_size(torch.ones(2, dtype=dtype)) == dtype.itemsize


def test_to_the_same_dtype_copies_where_it_is_asked_for(module: ModuleType) -> None:
    x = torch.ones(2)
    assert module.copied(x, False) is x and module.copied(x, True).data_ptr() != x.data_ptr()


def test_each_saved_tensor_is_at_its_place(module: ModuleType) -> None:
    x, y, z = (torch.tensor([value], requires_grad=True) for value in (2.0, 3.0, 5.0))
    module.saves(x, y, z).sum().backward()
    assert [part.grad.item() for part in (x, y, z)] == [3.0, 2.0, 1.0]


def test_an_exception_of_c_plus_plus_has_pybind11s_type(module: ModuleType) -> None:
    with pytest.raises(ValueError, match="length"):
        module.length_error()


def test_an_optional_list_of_integers_is_an_argument_of_functions_and_ops(module: ModuleType) -> None:
    assert [module.length(), module.length(None), module.length([1, 2]), module.length([])] == [-1, -1, 2, 0]
    op = torch.ops.facade_names.length
    assert [op(), op(None), op([1, 2]), op([])] == [-1, -1, 2, 0]


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.float16, "222"), (torch.float64, "888"), (torch.complex64, "888")]
)
def test_dispatch_macros_have_torchs_names(module: ModuleType, dtype: torch.dtype, expected: str) -> None:
    assert module.dispatched(torch.ones(2, dtype=dtype)) == expected


def test_a_dtype_has_a_short_name(module: ModuleType) -> None:
    assert module.short_dtypes() == [
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.float32, torch.float64),
    ]


def test_the_threads_of_a_loop_have_the_callers_grad_mode(module: ModuleType) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert module.recording() == 0
    finally:
        torch.set_num_threads(threads)


def test_an_unsigned_number_keeps_its_value(module: ModuleType) -> None:
    assert module.whole(2**64 - 1) == (2**64 - 1, 1, -3) and module.whole(2**63) == (2**63, 1, -3)
    assert [type(number) for number in module.whole(0)] == [int, int, int]


@pytest.mark.parametrize("value", [True, -3, 2.5, 1 + 2j])
def test_a_scalar_is_a_result_and_no_argument(module: ModuleType, value: complex) -> None:
    number = module.number(torch.tensor(value))
    assert number == value and type(number) is type(value)
    assert "-> Union[Number, torch.SymInt, torch.SymFloat, torch.SymBool]" in module.number.__doc__
    with pytest.raises(TypeError, match="incompatible function arguments"):
        module.from_number(value)


def test_an_attribute_an_item_and_an_iterator_are_results(module: ModuleType) -> None:
    assert module.attribute(3 + 1j, "real") == 3.0 and module.entry({"key": "value"}) == "value"
    with pytest.raises(AttributeError, match=r"^'complex' object has no attribute 'x'$"):
        module.attribute(1j, "x")
    with pytest.raises(KeyError):
        module.entry({})
    assert list(module.iterated([1, 2])) == [1, 2] and module.next(iter([5])) == 5
    assert "-> collections.abc.Iterator" in module.iterated.__doc__
    with pytest.raises(TypeError, match="incompatible function arguments"):
        module.next([5])


def test_an_attribute_is_found_by_an_object_and_deleted(module: ModuleType) -> None:
    assert module.without(SimpleNamespace(x=1), "x") == (True, 1, False)
    with pytest.raises(AttributeError):
        module.without(SimpleNamespace(), "x")


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA begins without an error where there is a GPU")
def test_a_device_that_is_not_there_does_not_begin(module: ModuleType) -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        module.begin_with_cuda()


def test_an_op_names_the_python_module_of_its_fakes(module: ModuleType) -> None:
    is_passed_on = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
    named = torch._C._dispatch_pystub("facade_names::refused", "")
    assert named == (("facade_names.fakes", "//names") if is_passed_on else None)


def test_a_null_pointer_is_none(module: ModuleType) -> None:
    assert module.nothing is None and module.null() and module.null(None) and not module.null("")
    assert "text: str = None" in module.null.__doc__


def test_layouts_and_memory_formats_are_arguments_and_results(module: ModuleType) -> None:
    for layout in (torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.jagged):
        assert module.layout(layout) is layout
    for memory_format in (torch.contiguous_format, torch.preserve_format, LAST, LAST_3D):
        assert module.format(memory_format) is memory_format
    for function in (module.layout, module.format):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            function(0)
    assert "(arg0: torch.layout) -> torch.layout" in module.layout.__doc__
    assert "(arg0: torch.memory_format) -> torch.memory_format" in module.format.__doc__


def test_a_variant_takes_its_first_alternative_that_needs_no_conversion(module: ModuleType) -> None:
    given = (1, True, 2.5, "s", [1, 2], (1,), b"b")
    assert [module.alternative(value) for value in given] == [0, 0, 1, 2, 3, 3, 2]
    for value in (None, [1.5], {}):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            module.alternative(value)
    assert module.either(True) == 3 and module.either(False) == "three"
    assert module.either.__doc__ is not None and "-> int | str" in module.either.__doc__


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("error", RuntimeError),
        ("index", IndexError),
        ("value", ValueError),
        ("type", TypeError),
        ("not implemented", NotImplementedError),
        ("linalg", torch.linalg.LinAlgError),
        ("range", RuntimeError),
    ],
)
def test_an_error_of_backward_has_torchs_type(module: ModuleType, what: str, error: type[Exception]) -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(error, match=what) as raised:
        module.fails(x, [x], what).sum().backward()
    assert type(raised.value) is error


@pytest.mark.parametrize(("what", "position"), [("list", 2), ("text", 3)])
def test_a_gradient_of_an_argument_that_is_no_tensor_is_an_error(module: ModuleType, what: str, position: int) -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(
        RuntimeError, match=f"a gradient different that is defined at position {position}, std the corr"
    ):
        module.fails(x, [x, x], what).sum().backward()


def test_the_node_of_a_function_has_torchs_name(module: ModuleType) -> None:
    x = torch.ones(2, requires_grad=True)
    made = module.saves(x, x, x)
    assert made.grad_fn.name() == "torch::autograd::CppNode<Saves>"
    made = module.shapeless(x)
    with pytest.raises(RuntimeError, match=r"^function torch::autograd::CppNode<Shapeless> returned an incorrect num"):
        made.sum().backward()


def test_a_tensor_without_memory_has_no_pointer_to_elements(module: ModuleType) -> None:
    for x in (torch.ones(2, device="meta"), FakeTensorMode().from_tensor(torch.ones(2))):
        for function in (module.first, module.first_by_accessor):
            with pytest.raises(RuntimeError, match="its data is not allocated yet"):
                function(x)


def test_what_is_no_sequence_is_converted_to_a_list(module: ModuleType) -> None:
    assert module.list_first([1]) == "list"
    for value in ({1}, {1: 2}.keys(), iter([1])):
        assert module.list_first(value) == "object"
    assert module.numbers({1: 2}.keys()) == [1] and module.numbers(range(2)) == [0, 1]


def test_a_mapping_that_is_no_dict_is_converted(module: ModuleType) -> None:
    for value in ({"a": 1}, MappingProxyType({"a": 1}), UserDict(a=1)):
        assert module.kind(value) == "mapping"
    with pytest.raises(TypeError, match="incompatible function arguments"):
        module.kind(dict)


def test_an_exception_of_python_has_its_type_value_and_trace(module: ModuleType) -> None:
    def fails() -> None:
        raise KeyError("k", 1)

    kind, value, trace = module.parts_of_error(fails)
    assert kind is KeyError and value.args == ("k", 1) and type(trace) is TracebackType


def test_a_product_with_factors_has_the_strides_of_torchs(module: ModuleType) -> None:
    x, y = torch.ones(3, 4), torch.ones(4, 3)
    for a in (torch.ones(3, 3).t(), torch.ones(3, 1), torch.ones(3, 6)[:, ::2]):
        assert module.with_factors(a, x, y).stride() == torch.addmm(a, x, y, beta=0.5, alpha=2).stride()


def test_a_vector_of_tensors_is_one_argument_without_a_gradient(module: ModuleType) -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    module.fails(x, [y, y], "").sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1, 1] and y.grad is None


def test_sizes_become_a_tuple(module: ModuleType) -> None:
    assert module.sizes(torch.ones(2, 3)) == (2, 3) and module.sizes(torch.tensor(1)) == ()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint64, torch.uint16, torch.float16])
def test_an_item_is_a_number_of_any_dtype(module: ModuleType, dtype: torch.dtype) -> None:
    assert module.item(torch.tensor([4.0]).to(dtype)) == 4


def test_a_number_that_no_scalar_holds_is_refused(module: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="on torch's stable ABI"):
        module.item(torch.tensor([2**63], dtype=torch.uint64))


def test_a_deduced_schema_names_its_results_as_torch_does(module: ModuleType) -> None:
    schema = str(torch.ops.facade_names.deduced.default._schema)
    assert schema == "facade_names::deduced(Tensor _0, int _1) -> (Tensor _0, int _1)"


@pytest.mark.parametrize(("sizes", "strides"), [((0, 4), (1, 1)), ((3, 1), (1, 7)), ((3, 4), (1, 3)), ((2, 3), (3, 1))])
def test_a_sum_of_integers_has_the_strides_of_an_operator(
    module: ModuleType, sizes: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    x = torch.arange(32).as_strided(sizes, strides)
    for made, expected in zip(module.sums(x), (x + x, x + 1, x + x[..., :1]), strict=True):
        assert torch.equal(made, expected) and made.stride() == expected.stride()


def test_a_complex_number_is_no_element_of_float16(module: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="cannot be converted to type double without overflow"):
        module.one_complex()


def test_an_empty_list_to_join_has_torchs_type_of_error(module: ModuleType) -> None:
    if torch.__version__.startswith(IN_INFERENCE):
        with pytest.raises(ValueError, match="expected a non-empty list of Tensors"):
            module.joined([])


def test_an_operator_that_inference_mode_gives_another_list_says_so(module: ModuleType) -> None:
    x = torch.arange(6.0).reshape(1, 2, 3)
    expected = torch.nn.functional.pad(x, (1, 1), "replicate")
    with torch.no_grad():
        assert torch.equal(module.padded(x), expected)
    with torch.inference_mode(), pytest.raises(RuntimeError) as raised:
        module.padded(x)
    if torch.__version__.startswith(IN_INFERENCE):
        assert str(raised.value) == (
            "aten::replication_pad1d in inference mode or in a transform is not on torch's stable ABI: it passes its "
            "list of integers as one of another type. Call it outside, or under torch.no_grad()"
        )


@pytest.mark.parametrize(("is_on", "warns"), [(False, False), (True, False), (True, True)])
def test_the_settings_of_determinism_are_torchs(module: ModuleType, is_on: bool, warns: bool) -> None:
    from torch.backends import cudnn, mkldnn
    from torch.utils import deterministic

    kept = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    flags = cudnn.deterministic, mkldnn.deterministic, deterministic.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(is_on, warn_only=warns)
        cudnn.deterministic, deterministic.fill_uninitialized_memory = not is_on, is_on
        mkldnn.deterministic = warns
        assert module.settings() == (is_on, warns, not is_on, warns, is_on)
    finally:
        torch.use_deterministic_algorithms(kept[0], warn_only=kept[1])
        cudnn.deterministic, mkldnn.deterministic, deterministic.fill_uninitialized_memory = flags


def test_a_source_may_declare_the_tensor_before_it_includes_a_header(module: ModuleType) -> None:
    assert module.early(torch.ones(2)).tolist() == [2, 2]


def test_a_tensor_takes_the_memory_of_another(module: ModuleType) -> None:
    source = torch.arange(6.0)
    x = torch.ones(1)
    assert module.set(x, source, 1) is x and x.data_ptr() == source.data_ptr() and x.tolist() == source.tolist()
    assert module.set(x, source, 2).tolist() == [[1], [2]] and x.stride() == (1, 1)
    assert module.set(x, source, 0).shape == (0,)


def test_a_result_is_written_into_a_tensor_as_by_torch(module: ModuleType) -> None:
    x = torch.arange(6).reshape(2, 3).t()
    assert module.at_least_one(torch.empty(0), x).stride() == (1, 3)
    leaf = torch.ones(3, 2, requires_grad=True)
    for out in (leaf, leaf * 1):
        assert module.at_least_one(out, x) is out and out.tolist() == [[0, 1], [1, 1], [1, 1]]
        with pytest.raises(RuntimeError, match="arguments don't support automatic differentiation"):
            module.one_more(out, x)
    with torch.no_grad():
        assert module.one_more(leaf, x).tolist() == (x + 1).tolist()


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(2, 3, 4),
        torch.ones(2, 3, 4).permute(2, 0, 1),
        torch.ones(2, 3, 4)[:, 1:],
        torch.ones(2, 3, 4)[:, :, 0],
        torch.ones(3).expand(2, 3),
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(1, 3).as_strided((1, 3), (7, 1)),
        torch.ones(()),
        torch.ones(0, 3).t(),
    ],
    ids=lambda x: f"{tuple(x.shape)}{x.stride()}",
)
def test_elements_without_gaps_are_those_that_torch_finds_so(module: ModuleType, x: torch.Tensor) -> None:
    assert module.is_dense(x) == torch.ops.aten.is_non_overlapping_and_dense.default(x)
    assert module.expected(x).is_contiguous() and torch.equal(module.expected(x), x)


def test_a_tensor_that_is_not_there_is_borrowed_too(module: ModuleType) -> None:
    assert module.expected(None) is None


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.float16, ["Float", "Float", "Float"]),
        (torch.float32, ["Float", "Double", "Float"]),
        (torch.float64, ["Double", "Double", "Double"]),
        (torch.int32, ["Int", "Long", "Long"]),
        (torch.bool, ["Bool", "Bool", "Bool"]),
        (torch.complex64, ["ComplexFloat", "ComplexDouble", "ComplexFloat"]),
        (torch.float8_e4m3fn, ["Float", "Float", "Float"]),
    ],
)
def test_the_types_of_mathematics_and_sums_are_torchs(module: ModuleType, dtype: torch.dtype, wide: list[str]) -> None:
    assert module.wide_types(dtype) == wide
    assert module.rounded_up(7, 2) == (4, 8) and module.rounded_up(8, 2) == (4, 8)


def test_what_autograd_is_asked_for_is_what_python_gives(module: ModuleType) -> None:
    x, unused = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.ones(2, requires_grad=True)
    first, second, some, none, gradient, kept = module.gradients(x, unused)
    assert first.tolist() == [3.0, 12.0, 27.0] and first.requires_grad and second.tolist() == [6.0, 12.0, 18.0]
    assert some.tolist() == [2.0, 4.0, 6.0] and none is None and kept.tolist() == [1.0, 1.0, 1.0]
    assert gradient is x.grad and gradient.tolist() == [6.0, 6.0, 6.0] and unused.grad is None


def test_an_error_of_the_graph_is_torchs(module: ModuleType) -> None:
    x = torch.ones(3, requires_grad=True)
    assert module.gradient_error(x) == "grad can be implicitly created only for scalar outputs"
    assert module.gradient_error(torch.ones(())).endswith("does not require grad and does not have a grad_fn")
    with pytest.raises(RuntimeError, match=r"backward within parallel_for is not possible in the facade: it runs Pyth"):
        module.gradient_in_parallel(x)


def test_modes_seeds_and_threads_are_the_processs(module: ModuleType) -> None:
    assert module.in_inference_mode(torch.ones(2)) == (True, False, False) and not torch.is_inference_mode_enabled()
    drawn = module.seeded(7)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(3))
    assert module.with_threads(2) == (2, True, True) and module.with_threads(1)[0] == 1
    with pytest.raises(RuntimeError, match=r"^Expected positive number of threads$"):
        module.with_threads(0)


def test_what_torch_was_built_with_and_what_its_types_give(module: ModuleType) -> None:
    backends = torch.backends
    parts = (backends.mkl.is_available(), torch._C.has_lapack, backends.openmp.is_available())
    assert module.built_with()[:4] == (*parts, backends.mkldnn.is_available())
    assert module.built_with()[4:] == (torch.cuda.is_available(), torch.get_default_dtype(), math.pi)
    types = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool, torch.complex64)
    for a, b in itertools.product(types, types):
        signed = a.is_signed
        assert module.types_of_two(a, b) == (torch.promote_types(a, b), torch.can_cast(a, b), signed)
    x = torch.tensor([0.5, 1.5])
    of_torch = torch.special.logsumexp(x, 0, keepdim=True), torch.softmax(x, 0, dtype=torch.float64)
    wanted = [torch.special.expit(x), *of_torch, torch.special.polygamma(1, x)]
    assert all(torch.equal(one, other) for one, other in zip(module.special(x), wanted, strict=True))
    assert module.distinct([torch.device(name) for name in ("cpu", "cuda:0", "cuda:1", "cuda:0")]) == 3


def test_a_generator_is_an_argument_and_a_result_and_no_operators(module: ModuleType) -> None:
    generator, x = torch.Generator(), torch.full((3,), 0.5)
    same, seed, device = module.generator(generator, 2**63 + 7)
    assert same is generator and seed == generator.initial_seed() == 2**63 + 7 and device == torch.device("cpu")
    assert module.generator(None, 1)[0] is None and module.drawn(x, None).shape == x.shape
    assert "torch.Generator | None" in module.generator.__doc__
    with pytest.raises(RuntimeError, match=r"^an operator with a generator is not on torch's stable ABI before torch"):
        module.drawn(x, generator)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        module.generator(7, 1)


def test_a_pointer_to_a_number_is_that_number(module: ModuleType) -> None:
    assert module.pointed(2.5) == [2.5, None]


def test_an_op_calls_itself_below_a_guard(module: ModuleType) -> None:
    scaled = torch.ops.facade_names.scaled
    x = torch.arange(3.0, requires_grad=True)
    y = scaled(x, 3)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert y.tolist() == [0, 3, 6] and first.tolist() == [3, 3, 3]
    with torch.no_grad():
        assert not scaled(x, 3).requires_grad
    assert set(scaled.default.tags) == {torch.Tag.pt2_compliant_tag, torch.Tag.pointwise}
    excluded = torch._C._dispatch_tls_local_exclude_set()
    with torch.autocast("cpu"):
        assert scaled(x.to(torch.bfloat16), 2).dtype == torch.float32
    assert scaled(x.to(torch.bfloat16), 2).dtype == torch.bfloat16
    assert torch._C._dispatch_tls_local_exclude_set() == excluded
    torch.library.opcheck(scaled, (x, 3))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("facade_names::scaled", r"has the arguments \(Tensor, int\), and the C\+\+ function has \(Tensor, float\)"),
        ("aten::relu", r"has the arguments \(Tensor\), and the C\+\+ function has \(Tensor, float\)"),
        ("facade_names::missing", "Could not find schema for facade_names::missing$"),
    ],
)
def test_a_call_that_does_not_fit_its_schema_is_an_error(module: ModuleType, name: str, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        module.dispatched(name, torch.ones(2))


def test_a_hook_and_operators_of_objects(module: ModuleType) -> None:
    x = torch.ones(2, requires_grad=True)
    module.hooked(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [6, 6]
    assert module.combined(7, 2) == [9, 5, 14, 3.5, 2, 28, -7, -8]
    with pytest.raises(TypeError, match="unsupported operand"):
        module.combined(7, "a")
