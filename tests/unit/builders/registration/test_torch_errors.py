"""What is advised about the errors with which torch refuses a TORCH_LIBRARY block."""

from __future__ import annotations

import pytest

from opforge.builders.registration import torch_errors


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        ("Only a single TORCH_LIBRARY can be used to register the namespace a", "use one of the two, or another names"),
        ("Tried to register an operator (a::f() -> ()) with the same name multiple times.", "use one of the two"),
        ("expected arrow but found '>' here:\nf(Tensor x) > Tensor\n            ~ <--- HERE\n", "Correct that block"),
        ("could not parse dispatch key: Cpu", "Correct that block"),
        ("Explicitly provided namespace (a) in schema string does not match namespace", "without its namespace"),
    ],
)
def test_another_library_is_blamed_for_what_it_can_have_caused_alone(problem, advice):
    error = torch_errors.error("op", "/store/op.so", f"{problem}\n", [])
    assert error.problem == problem.strip() and advice in error.advice
    assert ("another library" in error.advice) == ("use one" in advice)
