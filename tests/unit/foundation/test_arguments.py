"""Arguments of public functions that are of a wrong type: one error names the argument, and what it may be."""

from __future__ import annotations

import os
import pathlib

import pytest

import opforge
from opforge import errors
from opforge.foundation.arguments import checked, wrong
from opforge.models.mapping import LayerKernel
from opforge.packages.load.get_kernel import get_local_kernel

MAPPING = {"Linear": "acme/linear:Linear"}


class Model:
    """What is looked at of a model: that it has modules."""

    def named_modules(self):
        return []


CALLS = {
    "load": (lambda: opforge.load(["a.cpp"], "a"), "name=['a.cpp'] cannot be used: expected str."),
    "load_inline": (lambda: opforge.load_inline({}, "int f();"), "name={} cannot be used: expected str."),
    "build_directory": (
        lambda: opforge.load("a", __file__, build_directory=5),
        "build_directory=5 cannot be used: expected str | os.PathLike[str] | None.",
    ),
    "target": (
        lambda: opforge.load("a", __file__, target=["cpu"]),
        "target=['cpu'] cannot be used: expected a text such as 'cpu:x86-64-v3', or a Target.",
    ),
    "get_kernel": (
        lambda: opforge.get_kernel("acme/relu", [2]),
        "version=[2] cannot be used: expected str | int | None.",
    ),
    "get_local_kernel": (
        lambda: get_local_kernel(None),
        "path=None cannot be used: expected str | os.PathLike[str].",
    ),
    "kernels_for": (lambda: opforge.kernels_for("model", MAPPING), "model='model' cannot be used: expected Module."),
    "mapping": (
        lambda: opforge.kernels_for(Model(), [MAPPING]),
        "mapping=[{'Linear': 'acme/linear:Linear'}] cannot be used: expected Mapping[str | type, Entries].",
    ),
    "check": (
        lambda: opforge.kernels_for(Model(), MAPPING, check="3"),
        "check='3' cannot be used: expected int.",
    ),
    "condition": (
        lambda: LayerKernel(Model, condition="training"),
        "condition='training' cannot be used: expected Callable[[Any], bool] | None.",
    ),
    "explain_kernels": (lambda: opforge.explain_kernels(None), "model=None cannot be used: expected Module."),
    "compile": (
        lambda: opforge.compile("model", "name"),
        "function='model' cannot be used: expected Callable[..., Any].",
    ),
    "save_compiled": (lambda: opforge.save_compiled(["a"]), "name=['a'] cannot be used: expected str."),
    "save_program": (
        lambda: opforge.save_program("a.pt2", None),
        "program=None cannot be used: expected ExportedProgram | str | os.PathLike[str].",
    ),
    "load_op": (
        lambda: opforge.get_accelerator().load_op(None),
        "class_name=None cannot be used: expected the name of an op's builder, such as CPUAdamBuilder.",
    ),
    "prepare": (
        lambda: opforge.prepare([None]),
        "ops=None cannot be used: expected names of ops, builder classes, or builders in the list.",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_a_wrong_type_is_named_with_what_it_may_be(name):
    call, text = CALLS[name]
    with pytest.raises(errors.SettingError) as raised:
        call()
    assert str(raised.value) == text


def test_a_number_is_no_file_descriptor_of_a_program():
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w") as file:
        with pytest.raises(errors.SettingError, match="expected str"):
            opforge.load_program(write)
        file.flush()  # it is still open


def test_another_error_of_a_checked_call_stays_as_it_is():
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'nme'"):
        opforge.load("a", __file__, nme="a")
    with pytest.raises(errors.BuilderError, match="Expected a list of strings"):
        opforge.load("a", __file__, extra_cflags="-O1")


@pytest.mark.parametrize("value", [3, True, pathlib.Path("a"), None, b"a"])
def test_what_an_annotation_accepts_is_passed_on(value):
    @checked
    def accepts(path: int | os.PathLike[str] | bytes | None) -> object:
        return path

    assert accepts(value) is value


def test_numbers_of_other_libraries_are_numbers():
    class Number:
        def __index__(self):
            return 3

        __float__ = __index__

    def accepts(size: int, bound: float) -> None:
        pass

    assert wrong(accepts, (Number(), Number()), {}) is None
    assert "size='3'" in str(wrong(accepts, ("3", 3), {}))


def test_a_call_that_does_not_fit_is_left_to_python():
    @checked
    def accepts(name: str) -> None:
        pass

    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        accepts("a", "b")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        accepts()
