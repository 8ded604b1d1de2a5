"""A branch by torch's version is accepted if every torch from the oldest on takes it in the same way, and only then."""

import pytest

from opforge.builders.facade.torch_versions import differing, has_one_answer

MAJOR, MINOR, PATCH = "TORCH_VERSION_MAJOR", "TORCH_VERSION_MINOR", "TORCH_VERSION_PATCH"


@pytest.mark.parametrize(
    "condition",
    [
        f"{MAJOR} > 2 || ({MAJOR} == 2 && {MINOR} >= 6)",
        f"{MAJOR} * 100 + {MINOR} >= 206",
        f"{MAJOR}>=2L",
        f"{MAJOR} == 1 && {MINOR} > 1000",
        f"!({MINOR} >= 2)",
        f"!{MINOR} > 3",
        f"{MINOR}",
        f"defined({MINOR}) && !defined {PATCH}",
        f"defined(USE_ROCM) && {MINOR} >= 6",
        f"defined USE_ROCM && {MAJOR} > 1",
        f"CUDA_VERSION >= 12000 && {MINOR} >= 2",
        f"F(1) || {MINOR} >= 2",
    ],
)
def test_a_condition_that_is_the_same_for_every_torch_is_known(condition: str) -> None:
    assert has_one_answer(condition)


@pytest.mark.parametrize(
    "condition",
    [
        f"{MINOR} >= 12",
        f"{PATCH} > 1",
        f"defined(USE_ROCM) && {MINOR} >= 12",
        f"CUDA_VERSION >= 12000 && {MINOR} >= 12",
        f"(A && {MINOR} >= 12) || (B && {MINOR} < 12)",
        # what is not understood is not accepted
        f"{MINOR} == A",
        f"{MINOR} & 1",
        f"{MINOR} >= 2 > 1",
        f"F({MINOR})",
        f"{MINOR} >= 010",
        f"{MINOR} ? 1 : 0",
        f"A && B && C && D && E && F && G && {MINOR} > 3",
        "defined(A",
        "",
    ],
)
def test_another_condition_is_not_accepted(condition: str) -> None:
    assert not has_one_answer(condition)


def test_each_use_that_a_later_torch_may_answer_otherwise_is_found_with_its_place() -> None:
    lines = [
        f"#if {MAJOR} > 1 && \\",
        f"    {MINOR} > 3",
        f"#elif {MINOR} > 11",
        f"int x = {MINOR};",
        f"#ifdef {MAJOR}",
        f"#define NEWEST {PATCH}",
        f"  #  if {MINOR} >= 4",
        "#if TORCH_VERSION_2_10_0",
    ]
    text = "\n".join(lines)
    found = [(text.count("\n", 0, start) + 1, macro) for start, macro in differing(text)]
    assert found == [(3, MINOR), (4, MINOR), (6, PATCH)]
    assert list(differing("int x;")) == []
