"""The versions of torch that an op works with: the limits, the reason in every place, and what is no range."""

from __future__ import annotations

import pytest
from support import sample_ops

from opforge.builders.declaration import machine, torch_range
from opforge.builders.lookup.fit import fit
from opforge.builders.planner import make_plan
from opforge.errors import BuilderError, OpIncompatibleError


@pytest.fixture
def torch_here(monkeypatch):
    """Returns a function that makes another version of torch the installed one."""
    return lambda version: monkeypatch.setattr(machine, "torch_version", lambda _folder: version)


@pytest.mark.parametrize(
    ("text", "here", "fits"),
    [
        (">=2.11,<2.14", "2.11.0", True),
        (">=2.11,<2.14", "2.13.1+cu130", True),
        (">=2.11,<2.14", "2.10.2", False),
        (">=2.11,<2.14", "2.14.0", False),
        (">=2.11,<2.14", "2.14.0a0+git1", False),
        ("<2.14.0", "2.14.0", False),
        ("<2.14.0", "2.13.9", True),
        (">=2.11.0", "2.11", True),
        (">=2.13.1", "2.13.0", False),
        ("<3", "2.99", True),
        (">=2.9", "2.10.0", True),
    ],
)
def test_a_version_is_compared_with_both_limits(text, here, fits):
    reason = None if fits else f"it needs torch {text}, and torch {here} is installed"
    assert torch_range.problem(text, here) == reason


@pytest.mark.parametrize("text", ["<=2.14", "soon", "<2.14;"])
def test_a_range_of_a_later_opforge_that_cannot_be_read_is_not_met(text):
    assert torch_range.problem(text, "2.13.0") == f"it needs torch {text}, and torch 2.13.0 is installed"


def test_an_op_without_torch_has_no_problem_with_its_version():
    assert torch_range.problem("<2.14", None) is None


@pytest.mark.parametrize("value", ["2.14", "==2.13", "<=2.13", "<2.x", ">=2.10 <2.14", "~=2.1", ",", None, 2.14])
def test_what_is_no_range_is_refused(tmp_path, value):
    with pytest.raises(BuilderError) as refused:
        sample_ops.plain_op(tmp_path, requires_torch=value)().spec()
    expected = 'Expected a lower limit, an upper limit, or both, such as ">=2.11,<2.14"'
    assert str(refused.value) == f"TestedBuilder: requires_torch={value!r}. {expected}"


def test_another_torch_is_a_reason_to_load_and_to_build_nothing(tmp_path, bin, torch_here):
    builder = sample_ops.plain_op(tmp_path / "src", requires_torch=" >=2.11 , <2.14 ")("cpu:x86-64")
    torch_here("2.14.0+cpu")
    reason = "it needs torch >=2.11,<2.14, and torch 2.14.0+cpu is installed"
    assert builder.is_compatible().reasons == (reason,)
    expected = f"The op 'plain' cannot be used for cpu:x86-64:\n  - {reason}"
    with pytest.raises(OpIncompatibleError) as refused:
        builder.load()
    assert str(refused.value).startswith(expected) and refused.value.reasons == (reason,)
    with pytest.raises(OpIncompatibleError) as refused:
        builder.build()
    assert str(refused.value).startswith(expected)


def test_the_range_is_a_requirement_of_the_plan_and_of_prebuilt_entries(tmp_path, torch_here):
    from support.compilers.fake_toolchain import FakeToolchain

    torch_here("2.13.0")
    spec = sample_ops.plain_op(tmp_path, requires_torch="<2.14")("cpu:x86-64").spec()
    requires = dict(make_plan(spec, FakeToolchain()).requires)
    assert requires == {"torch versions": "<2.14"}
    record = {"target": "cpu:x86-64", "machine": "x86_64", "abi": "c", "floors": {}, "needs": [], "interface": 1}
    here = machine.Machine("x86_64", "x86-64", "2.36", "3.4.30", "cpython-311", "2.13.0")
    judge = {**record, "requires": requires, "torch_target": "2.10", "user_flags": {}}
    assert fit(judge, here, spec).problem == ""
    assert fit(judge, here._replace(torch=None), spec).problem == ""
    problem = fit(judge, here._replace(torch="2.14.1"), spec).problem
    assert problem == "it needs torch <2.14, and torch 2.14.1 is installed"
