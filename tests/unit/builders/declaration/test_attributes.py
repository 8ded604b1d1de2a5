"""The attributes of a builder: one vocabulary; other words are refused, DeepSpeed's methods honoured."""

from __future__ import annotations

import ctypes
import functools

import pytest
from support import sample_ops

import opforge
from opforge.builders.declaration import op_spec
from opforge.compat import attributes
from opforge.errors import BuilderError, OpIncompatibleError, SourceNotFoundError
from opforge.fast_path import library, lookup


def declare(folder, **members):
    return sample_ops.builder_class(folder, "plain", abi="c", **members)


@pytest.fixture
def folder(tmp_path):
    sample_ops.plain_op(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", sorted(attributes.OTHER_WORDS))
def test_another_word_is_refused_with_the_line_to_write(folder, name):
    with pytest.raises(BuilderError) as refused:
        declare(folder, **{name: ["-O1"]})().spec()
    assert f"it has the attribute {name!r}. Write {attributes.OTHER_WORDS[name]}" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("source", "sources"),
        ("include_dir", "include_dirs"),
        ("librarys", "libraries"),
        ("extra_compile_arg", "extra_compile_args"),
        ("define_macro", "define_macros"),
        ("device", "devices"),
        ("torch_targets", "torch_target"),
    ],
)
def test_a_misspelt_attribute_is_refused_with_the_right_one(folder, name, meant):
    expected = f"it has the attribute {name!r}. Write {meant}, or begin an attribute of your own with an underscore"
    with pytest.raises(BuilderError) as refused:
        declare(folder, **{name: []})().spec()
    assert expected in str(refused.value)


def test_a_word_set_on_the_builder_itself_is_refused_too(folder):
    builder = declare(folder)()
    builder.cxx_flags = ["-O1"]
    with pytest.raises(BuilderError, match="it has the attribute 'cxx_flags'"):
        builder.spec()


def test_an_attribute_of_the_authors_own_is_left_alone(folder):
    def helper(self):
        return 1

    members = {"blocks": 4, "_sourcs": [], "helper": helper, "tuned": property(helper), "fast": staticmethod(helper)}
    own, plain = declare(folder, **members)().spec(), declare(folder)().spec()
    assert own._replace(package="") == plain._replace(package="")


@pytest.mark.parametrize(
    ("value", "device", "flags"),
    [
        (["-O1"], "cuda", (("-O1",), ())),
        ({"cxx": ["-O1"]}, "cuda", (("-O1",), ())),
        ({"cxx": ["-O1"], "nvcc": ["-lineinfo"]}, "cuda", (("-O1",), ("-lineinfo",))),
        ({"nvcc": ["-a"], "hip": ["-b"], "cuda": ["-c"]}, "hip", ((), ("-a", "-b"))),
        ({"sycl": ["-a"], "xpu": ["-b"]}, "xpu", ((), ("-a", "-b"))),
        ({"opencl": ["-a"]}, "opencl", ((), ("-a",))),
        ({}, "cpu", ((), ())),
    ],
)
def test_compile_args_are_a_list_or_a_dict_by_compiler(folder, value, device, flags):
    cls = declare(folder, extra_compile_args=value, devices=[device])
    spec = cls("hip:gfx90a" if device == "hip" else device).spec()
    assert (spec.cxx_flags, spec.device_flags) == flags


@pytest.mark.parametrize(
    ("value", "defines"),
    [
        ([("B", "2"), ("A", None)], (("A", ""), ("B", "2"))),
        ({"A": ""}, (("A", ""),)),
        ((), ()),
    ],
)
def test_macros_are_pairs_as_setuptools_has_them(folder, value, defines):
    assert declare(folder, define_macros=value)().spec().defines == defines


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [
        ("define_macros", ["A"], 'define_macros=[\'A\']. Expected [("NAME", "value"), ...], None for a name alone'),
        ("define_macros", [("A", 1)], 'define_macros=[(\'A\', 1)]. Expected [("NAME", "value"), ...]'),
        ("define_macros", 5, "define_macros=5. Expected"),
        ("extra_compile_args", "-O1", "extra_compile_args='-O1'. Expected a list of strings"),
        ("extra_compile_args", {"cxx": "-O1"}, "extra_compile_args['cxx']='-O1'. Expected a list of strings"),
        ("extra_compile_args", {1: []}, "extra_compile_args has the key 1. Expected cpu, cuda, cxx, hip, nvcc,"),
        (
            "extra_compile_args",
            {"CXX": []},
            "extra_compile_args has the key 'CXX'. Expected cpu, cuda, cxx, hip, nvcc,",
        ),
        ("extra_compile_args", {"nvcc_dlink": []}, "extra_compile_args has the key 'nvcc_dlink'. Expected"),
        ("toolchain", "nvcc", "toolchain='nvcc' cannot be imported (No module named 'nvcc'). Expected module:Class"),
        ("toolchain", "json:", "toolchain='json:' cannot be imported"),
        ("devices", "cpu", "devices='cpu'. Write devices = [\"cpu\"]"),  # not: it is an op for c, p, u
        ("devices", "cuda", "devices='cuda'. Write devices = [\"cuda\"]"),
        ("devices", [], 'devices=[]. Name at least one, such as ["cpu"]'),
        ("devices", None, 'devices=None. Expected a list of devices, such as ["cpu"]'),
        ("devices", [None], 'devices=[None]. Expected a list of devices, such as ["cpu"]'),
        ("devices", b"cpu", "devices=b'cpu'. Expected a list of devices, such as [\"cpu\"]"),
        ("sources", ["plain.cpp", "a.h"], "sources names 'a.h', a header. Remove it: a header is compiled with"),
        ("sources", ["plain.cpp", "lib/a.o"], "'lib/a.o', which is compiled already. Name it in extra_link_args"),
        ("version", 2, 'version=2. Expected a text, such as "2"'),
        ("python_functions", dict, "python_functions=<class 'dict'>. Expected a text, such as \"module:function\""),
        ("cases", ("a", "b"), "cases=('a', 'b'). Expected a text, such as \"module:CASES\""),
        ("toolchain", int, "toolchain=<class 'int'>. Expected a text, \"module:Class\""),
        (
            "kernel_roots",
            ["/a"],
            "kernel_roots=['/a']. Expected a list of KernelRoot. The decorator opforge.kernel_root",
        ),
        ("kernel_roots", None, "kernel_roots=None. Expected a list of KernelRoot"),
    ],
)
def test_a_value_of_another_form_is_refused(folder, attribute, value, text):
    with pytest.raises(BuilderError) as refused:
        declare(folder, **{attribute: value})().load()
    assert text in str(refused.value)


def test_a_folder_may_be_a_path_and_no_functions_may_be_none(folder):
    cls = declare(folder, python_functions=None, cases=None)
    cls.folder = folder
    assert cls().spec().roots[0].path == str(folder)
    cls.folder = 5
    with pytest.raises(BuilderError, match=r'folder=5\. Expected a path, such as "/the/folder"'):
        cls().spec()


@pytest.mark.parametrize("where", ["no_module_of_this_name:bind", "json", "json:", "json:bind", ":bind"])
def test_python_functions_that_are_not_there_are_named(where):
    with pytest.raises(BuilderError) as refused:
        library.python_functions(where, object(), "plain")
    assert str(refused.value).startswith(f"plain: python_functions={where!r} cannot be imported (")
    assert 'Expected "module:function", of a function that returns a dict' in str(refused.value)


def test_python_functions_that_return_no_functions_are_an_error():
    with pytest.raises(
        BuilderError, match=r"python_functions='builtins:repr' has returned '<object object at .*'\. Exp"
    ):
        library.python_functions("builtins:repr", object(), "plain")


@pytest.mark.parametrize("value", [["A"], None, 5, [("A", 1)]])
def test_load_refuses_macros_of_another_form(folder, value):
    with pytest.raises(BuilderError, match="define_macros="):
        opforge.load("plain", [str(folder / "plain.cpp")], abi="c", define_macros=value)


@pytest.mark.parametrize("name", sorted(attributes.NOT_NEEDED))
def test_a_word_without_a_counterpart_is_refused_with_the_reason(folder, name):
    with pytest.raises(BuilderError) as refused:
        declare(folder, **{name: []})().spec()
    assert f"it has the attribute {name!r}. Remove it: {attributes.NOT_NEEDED[name]}" in str(refused.value)


@pytest.mark.parametrize("kind", [property, functools.cached_property, lambda function: function])  # noqa: TID251
@pytest.mark.parametrize("name", ["cxx_flags", "nvcc_flags", "link_args", "version_dependent_macros"])
def test_another_word_is_refused_as_a_property_or_method_too(folder, name, kind):
    with pytest.raises(BuilderError, match=f"it has the attribute {name!r}. Write "):
        declare(folder, **{name: kind(lambda self: [])})().spec()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("extra_cflag", "extra_compile_args = [...]"),
        ("extra_cuda_cflag", 'extra_compile_args = {"cxx": [...], "cuda": [...]}'),
        ("cxx_arg", "cxx_args()"),
        ("libraries_arg", "libraries_args()"),
    ],
)
def test_a_misspelt_other_word_or_method_is_refused(folder, name, meant):
    with pytest.raises(BuilderError) as refused:
        declare(folder, **{name: lambda self: []})().spec()
    assert f"it has the attribute {name!r}. Write {meant}" in str(refused.value)


def test_a_property_named_like_a_method_of_deepspeeds_is_refused(folder):
    with pytest.raises(BuilderError, match=r"include_paths is not a method. Write def include_paths\(self\)"):
        declare(folder, include_paths=property(lambda self: []))().spec()


@pytest.mark.parametrize(
    ("method", "attribute"),
    [
        ("cxx_args", "extra_compile_args"),
        ("extra_ldflags", "extra_link_args"),
        ("include_paths", "include_dirs"),
    ],
)
def test_a_method_beside_the_attribute_that_it_sets_is_refused(folder, method, attribute):
    with pytest.raises(BuilderError, match=rf"it has the attribute '{attribute}' and {method}\(\)"):
        declare(folder, **{method: lambda self: [], attribute: ["-DKEEP"]})().spec()


class TestMovedFromDeepSpeed:
    def test_the_methods_are_those_that_the_spec_looks_for(self):
        assert set(attributes.METHODS) == op_spec.DEEPSPEED_METHODS

    def test_a_builder_with_one_of_them_is_not_known_by_its_attributes(self, folder):
        for method in op_spec.DEEPSPEED_METHODS:
            assert lookup.declaration(declare(folder, **{method: lambda self: []})(), opforge.OpBuilder) == ""

    def test_its_methods_are_called(self, folder):
        class Moved(opforge.OpBuilder):
            BUILD_VAR = "DS_BUILD_PLAIN"
            NAME = "plain"
            abi = "c"
            folder = ""

            def __init__(self):
                super().__init__(name=self.NAME)

            def absolute_name(self):
                return f"deepspeed.ops.{self.NAME}"

            def sources(self):
                return ["plain.cpp"]

            def include_paths(self):
                return ["."]

            def cxx_args(self):
                return ["-O1", ""]

            def nvcc_args(self):
                return ["-lineinfo"]

            def extra_ldflags(self):
                return ["-s"]

            def libraries_args(self):
                return ["m", "-ldl"]

        Moved.folder = str(folder)
        spec = Moved().spec()
        assert (spec.name, spec.sources, spec.include_dirs) == ("plain", ("plain.cpp",), (".",))
        assert (spec.cxx_flags, spec.device_flags, spec.link_flags) == (("-O1",), (), ("-s", "-lm", "-ldl"))
        assert Moved().load().value() == 1

    def test_a_method_that_returns_a_text_is_refused_as_a_text(self, folder):
        cls = declare(folder, sources=lambda self: "plain.cpp")
        with pytest.raises(BuilderError, match=r"sources='plain\.cpp'\. Expected a list of strings"):
            cls().spec()

    def test_a_method_that_needs_deepspeeds_base_class_is_refused_with_the_line_to_write(self, folder):
        cls = declare(folder, cxx_args=lambda self: super(type(self), self).cxx_args())
        with pytest.raises(BuilderError) as refused:
            cls().spec()
        advice = "The method may need DeepSpeed's base class. Write extra_compile_args = ... instead"
        assert "cxx_args() fails: 'super' object has no attribute 'cxx_args'" in str(refused.value)
        assert advice in str(refused.value)

    def test_its_verdict_is_respected(self, folder):
        def is_compatible(self, verbose=False):
            return False

        with pytest.raises(OpIncompatibleError, match=r"its is_compatible\(\) returns False"):
            declare(folder, is_compatible=is_compatible)().load()

    def test_an_override_that_calls_ours_first_is_respected(self, folder):
        def is_compatible(self, verbose=False):
            return super(type(self), self).is_compatible(verbose)

        assert declare(folder, is_compatible=is_compatible)().load().value() == 1

    def test_an_override_that_calls_ours_leaves_the_error_of_a_missing_source_as_it_is(self, folder):
        def is_compatible(self, verbose=False):
            return super(type(self), self).is_compatible(verbose)

        builder = declare(folder, is_compatible=is_compatible, sources=["missing.cpp"])()
        assert "missing.cpp" in str(builder.is_compatible())
        with pytest.raises(SourceNotFoundError):
            builder.load()

    def test_a_verdict_may_load_the_op(self, folder):
        def is_compatible(self, verbose=False):
            return self.load().value() == 1

        builder = declare(folder, is_compatible=is_compatible)()
        assert builder.load().value() == 1 and builder.is_compatible()


def test_load_takes_the_same_words_as_a_builder(tmp_path):
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "two.h").write_text("#define TWO 2\n")
    source = tmp_path / "sum.cpp"
    source.write_text(
        "#include <two.h>\n#include <cmath>\n"
        'extern "C" double sum(double x) { return TWO + ONE + HALF + std::sin(x); }\n'
    )
    op = opforge.load(
        sample_ops.unique_name("sum"),
        [source],
        extra_cflags=["-DHALF=0.5"],
        include_dirs=[tmp_path / "inc"],
        define_macros=[("ONE", "1")],
        extra_compile_args={"cxx": ["-O1"]},
        extra_link_args=["-Wl,-z,now"],
        libraries=["m"],
        signatures={"sum": (ctypes.c_double, [ctypes.c_double])},
    )
    assert op.sum(0.0) == 3.5
