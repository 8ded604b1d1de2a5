"""The samples of a package, on which torch's checks of its ops run."""

from __future__ import annotations

import sys
import types

import pytest

from opforge.packages.pack import variant_checks_process

WRONG = {
    "a dictionary": ({"relu": [(1.0,)]}, "'relu'"),
    "arguments alone": ([(1.0,)], "(1.0,)"),
    "one argument without a tuple": ([("relu", 1.0)], "('relu', 1.0)"),
}


@pytest.mark.parametrize(("samples", "shown"), WRONG.values(), ids=WRONG)
def test_a_sample_that_is_no_pair_of_a_name_and_arguments_is_shown(monkeypatch, samples, shown):
    package, ops, module = (types.ModuleType(name) for name in ("sampled", "sampled._ops", "sampled_samples"))
    ops.ops = types.SimpleNamespace(relu=types.SimpleNamespace(default=None))
    module.samples = lambda: samples
    for part in (package, ops, module):
        monkeypatch.setitem(sys.modules, part.__name__, part)
    with pytest.raises(TypeError) as error:
        variant_checks_process.opcheck(package, "sampled_samples:samples")
    assert str(error.value) == (
        f"sampled_samples:samples gives {shown}; expected a pair of an op's name and its arguments, such as "
        '("relu", (torch.ones(2),))'
    )
