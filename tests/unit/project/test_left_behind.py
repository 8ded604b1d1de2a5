"""Each test ends with the variables, the working folder and torch's settings with which it began."""

from __future__ import annotations

import os

import pytest
from support.processes import left_behind

torch = pytest.importorskip("torch")
CHANGES = {
    "a variable more": (
        lambda: os.environ.update(OPFORGE_LEFT="1"),
        ["the variable OPFORGE_LEFT is '1', it was None"],
    ),
    "another value": (lambda: os.environ.update(PATH=""), [f"the variable PATH is '', it was {os.environ['PATH']!r}"]),
    "a variable less": (
        lambda: os.environ.pop("PATH"),
        [f"the variable PATH is None, it was {os.environ['PATH']!r}"],
    ),
    "one that another library sets": (lambda: os.environ.update(OF_A_LIBRARY="1"), []),
    "a folder": (lambda: os.chdir("/"), [f"the working folder is '/', it was {os.getcwd()!r}"]),
    "threads": (
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
        [f"the number of torch's threads is {torch.get_num_threads() + 1}, it was {torch.get_num_threads()}"],
    ),
    "a dtype": (
        lambda: torch.set_default_dtype(torch.float64),
        ["the default dtype of torch is torch.float64, it was torch.float32"],
    ),
    "no gradients": (lambda: torch.set_grad_enabled(False), ["torch.is_grad_enabled() is False, it was True"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_left_is_named_and_put_back(change):
    make, expected = CHANGES[change]
    before = left_behind.settings()
    make()
    assert left_behind.changes(before) == expected
    os.environ.pop("OF_A_LIBRARY", None)
    assert left_behind.settings() == before
