"""The cases of all ops: complete, and without anything that is only discovered while they are measured."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

WITHOUT_CASES = {"ShareMemCommBuilder", "CCLCommBuilder"}
"""Collectives: their cases need several ranks, and are not written yet."""


def all_cases():
    from opforge.bench.selection import select

    return [pytest.param(item, id=f"{item.op}: {item.case.name}") for item in select(())]


def test_every_op_of_the_host_has_cases():
    from opforge.builders.cpu import BUILDERS
    from opforge.ops.cases import CASES

    assert set(BUILDERS) - set(CASES) <= WITHOUT_CASES
    assert set(CASES) <= set(BUILDERS)


@pytest.mark.parametrize("item", all_cases())
def test_a_case_is_consistent(item):
    from opforge.ops.cases import OURS
    from opforge.ops.cases.case import TIME, UNITS

    case = item.case
    assert case.function or case.ours
    assert OURS not in case.rivals
    assert set(case.baseline) <= set(case.rivals)
    assert list(case.sizes) == sorted(set(case.sizes))
    assert set(case.quick_sizes()) <= set(case.sizes)
    assert case.unit in (*UNITS, TIME)
    assert {*case.goals, *case.processor_goals} <= {*case.rivals, "baseline"}
    assert all(case.amount(size, 2) > 0 for size in case.sizes)
    assert set(case.measured_dtypes) <= set(case.dtypes)
    assert set(case.devices) <= {"cpu", "cuda"}


def test_the_inputs_of_a_case_for_gpus_are_on_the_device_of_its_place():
    """All that is timed: only what is compared is moved to the device afterwards. The device of none stands for it."""
    from opforge.builders.triton import TRITON_BUILDERS
    from opforge.ops.cases import Place, cases_of
    from opforge.testing.tensors import tensors_of

    for where in TRITON_BUILDERS.values():
        module, _, name = where.partition(":")
        for case in cases_of(getattr(importlib.import_module(module), name)):
            place = Place(1, case.dtypes[0], "meta", shape=case.shapes[-1])
            devices = {tensor.device.type for tensor in tensors_of(case.inputs(place))}
            assert devices == {"meta"}, (name, case.name)


@pytest.mark.parametrize("name", ["keys and values to pages", "keys and values to pages, rotated by frequencies"])
def test_what_describes_a_batch_is_on_the_device_of_its_pages(name):
    from opforge.ops.cases import Place
    from opforge.ops.cases.ragged import RAGGED_OPS
    from opforge.testing.tensors import tensors_of

    calls = []
    op = SimpleNamespace(
        **dict.fromkeys(("linear_kv_copy", "kv_trained_rotary_embeddings"), lambda *own: calls.append(own))
    )
    case = next(case for case in RAGGED_OPS if case.name == name)
    case.bound(op)(*case.inputs(Place(1, "float32", "meta", shape=case.shapes[-1])))
    assert {tensor.device.type for tensor in tensors_of(calls[0])} == {"meta"} and len(tensors_of(calls)) >= 8


def test_the_cases_of_an_op_have_different_names():
    from opforge.bench.selection import select

    names = [(item.op, item.case.name) for item in select(())]
    assert len(names) == len(set(names))


def test_all_cases_can_be_listed_without_torch():
    code = "import sys; from opforge.bench.selection import select; select(()); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["CPUAdamBuilder", "CPUAdam", "cpu_adam", "cpu-adam"])
def test_an_op_may_be_spelled_in_several_ways(name):
    from opforge.bench.selection import select

    assert {item.op for item in select([name])} == {"CPUAdam"}


def test_the_error_for_an_unknown_op_names_the_nearest():
    from opforge.bench.selection import UnknownOpError, select

    with pytest.raises(UnknownOpError) as error:
        select(["CPUAdm"])
    assert str(error.value).startswith("'CPUAdm' is not an op that has cases. Did you mean CPUAdam")
    with pytest.raises(UnknownOpError, match="No module named 'no_such_module'"):
        select(["no_such_module:CASES"])
    with pytest.raises(UnknownOpError, match="'json:dumps': TypeError: 'json:dumps' is not a Case, or a tuple of them"):
        select(["json:dumps"])


def test_cases_of_ones_own_are_found_in_the_working_folder(tmp_path, monkeypatch):
    from opforge.bench.selection import UnknownOpError, select

    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # as in a console script
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_cases.py").write_text("from opforge.ops.cases.pinned import PIN_MEMORY as CASES\n")
    (tmp_path / "broken_cases.py").write_text("1 / 0\n")
    assert {item.op for item in select(["own_cases:CASES"])} == {"own_cases:CASES"}
    with pytest.raises(UnknownOpError, match=r"'broken_cases:CASES': ZeroDivisionError: division by zero\. Expected"):
        select(["broken_cases:CASES"])


def test_goals_may_depend_on_the_size():
    from opforge.ops.cases import Case

    rivals = {"gloo": lambda inputs: lambda: None}
    case = Case("x", lambda place: (), sizes=(1, 2), rivals=rivals, baseline=("gloo",), goals={"gloo": {1: 10.0}})
    assert case.goal("gloo", 1) == 10.0
    assert case.goal("gloo", 2) is None
    assert case.goal("baseline", 1) is None


def test_a_case_that_contradicts_itself_is_an_error():
    from opforge.ops.cases import Case, Promise

    with pytest.raises(ValueError, match="the case 'x' promises BATCH or has `batch`, expected both or none"):
        Case("x", lambda place: (), promises=(Promise.BATCH,))
    with pytest.raises(ValueError, match="the case 'x' names 'gloo': expected one of its rivals: copy"):
        Case("x", lambda place: (), rivals={"copy": lambda inputs: lambda: None}, goals={"gloo": 1.0})


def test_a_builder_names_its_cases(tmp_path, monkeypatch):
    from opforge.bench.selection import select

    monkeypatch.chdir(tmp_path)
    (tmp_path / "named_cases.py").write_text(
        "from opforge import OpBuilder\n"
        "from opforge.ops.cases import Case\n"
        "CASE = Case('one', lambda place: (), sizes=(1,))\n"
        "class OneBuilder(OpBuilder):\n"
        "    name, sources, cases = 'one', ['one.cpp'], 'named_cases:CASE'\n"
    )
    (item,) = select(["named_cases:OneBuilder"])
    assert (item.case.name, item.builder.__name__) == ("one", "OneBuilder")


def test_a_named_op_whose_cases_have_no_sizes_is_an_error(tmp_path, monkeypatch):
    """Such a case is for tuning or comparing alone."""
    from opforge.bench.selection import UnknownOpError, select

    monkeypatch.chdir(tmp_path)
    text = "from opforge.ops.cases import Case\nCASE = Case('one', lambda place: (), lambda op: abs)\n"
    (tmp_path / "unsized_cases.py").write_text(text)
    with pytest.raises(UnknownOpError, match=r"'unsized_cases:CASE': no case of it has sizes to measure\. Set `sizes`"):
        select(["unsized_cases:CASE"])


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("promises", ("thread",), "a tuple of Promise: (*ORDINARY, Promise.BATCH)"),
        ("promises", "threads", "a tuple of Promise: (*ORDINARY, Promise.BATCH)"),
        ("unit", "GB", "one of GB/s, 1000/s, us"),
        ("sizes", 1024, "a tuple in ascending order: (1024, 4096)"),
        ("sizes", (2, 1), "a tuple in ascending order: (1024, 4096)"),
        ("quick", 4096, "a tuple of sizes, or None: (4096,)"),
        ("dtypes", "float32", "a tuple of torch's dtypes by name: ('float32', 'bfloat16')"),
        ("dtypes", ("fp32",), "a tuple of torch's dtypes by name: ('float32', 'bfloat16')"),
        ("shapes", (3, 5), "a tuple of shapes: ((1,), (3, 5))"),
        ("batch", {0: None}, "positions of arguments with the dimensions of their rows, one at least: {0: 0, 1: None}"),
        ("baseline", "copy", "a tuple of rivals: ('copy',)"),
        (
            "tolerance",
            {"float33": 1e-3},
            "a number, numbers by torch's dtypes, a function, or None: {'bfloat16': 1e-2}",
        ),
        ("tolerance", -1.0, "a number, numbers by torch's dtypes, a function, or None: {'bfloat16': 1e-2}"),
        ("tuned", {"fp32": (1,)}, "sizes by torch's dtypes, or by 'any': {'float32': (4096,)}"),
        ("outputs", "out", "a tuple of arguments: ('out',)"),
    ],
)
def test_a_field_of_another_form_is_an_error_that_says_what_is_expected(field, value, expected):
    from opforge.ops.cases import Case

    with pytest.raises(ValueError) as error:
        Case("x", lambda place: (), **{field: value})
    assert str(error.value) == f"the case 'x' has {field}={value!r}: expected {expected}"


def test_every_dtype_of_torch_has_a_name_that_a_case_accepts():
    import torch

    from opforge.ops.cases import Case

    names = [str(own).removeprefix("torch.") for own in vars(torch).values() if isinstance(own, torch.dtype)]
    numbers = tuple(name for name in names if not name.startswith(("q", "bits", "int", "uint")))
    assert Case("x", lambda place: (), dtypes=(*numbers, "int8", "uint16")).dtypes


def test_a_case_that_names_a_function_needs_the_ops_builder():
    from opforge.ops.cases import Case

    with pytest.raises(ValueError) as error:
        Case("x", lambda place: (), "squared_relu").bound(None)
    assert str(error.value) == (
        "the case 'x' names the function 'squared_relu' of an op, and no op was loaded: expected the op's builder,"
        " which names the case: MODULE:Builder, instead of the case itself"
    )
