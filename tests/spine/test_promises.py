"""No promise is without a test: each sentence of README, SECURITY.md and the concepts page is tried, or is none."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
from spine.promises import NOT_PROMISED, PAGES, PROMISES, Promise
from support import tiers

ROOT = tiers.TESTS.parent
FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)


@functools.cache
def sentences(page: str) -> tuple[str, ...]:
    """Returns the sentences of a page's prose and the rows of its tables, without blocks of code and headings."""
    text = re.sub(r"<!--.*?-->", "", FENCED.sub("\n", (ROOT / page).read_text()), flags=re.DOTALL)
    parts = [""]
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith(("#", "|", "- ", "![")):
            parts.append("")
        if not line.startswith("#") and not re.fullmatch(r"[|\- ]+", line):
            parts[-1] += f" {line.removeprefix('- ')}"
    found = []
    for part in (" ".join(part.split()).strip("| ") for part in parts):
        is_row = " | " in part
        found += [part] if is_row else re.split(r"(?<=[.:?!])\s+(?=[A-Z`*\[])", part)
    return tuple(sentence for sentence in found if sentence)


def of(page: str) -> list[Promise]:
    return [promise for promise in PROMISES if promise.page == page]


@pytest.mark.parametrize("page", PAGES)
def test_each_sentence_is_a_promise_with_a_test_or_promises_nothing(page):
    known = (
        *(promise.sentence for promise in of(page)),
        *(words for each in NOT_PROMISED[page].values() for words in each),
    )
    new = [sentence for sentence in sentences(page) if not sentence.startswith(known)]
    assert not new, f"write a test in tests/spine and a line in promises.py for: {new}"


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.sentence[:50])
def test_a_promise_is_one_sentence_of_its_page_and_its_test_is_run(promise):
    found = [sentence for sentence in sentences(promise.page) if sentence.startswith(promise.sentence)]
    assert len(found) == 1, f"{promise.page} has it {len(found)} times: {promise.sentence}"
    name, _, function = promise.test.partition("::")
    path = tiers.TESTS / name
    assert path.is_file(), f"there is no {name}"
    assert bool(promise.later) != tiers.is_first(path), "`make test` runs the test, or `later` says what it needs"
    if function:
        marks = marks_of(path, function)
        assert "long" not in marks and ("test_all" in marks) <= bool(promise.later), f"{promise.test} is marked {marks}"


def marks_of(path: Path, function: str) -> list[str]:
    """Returns the names of the marks of a function or a method. Raises AssertionError if there is none of the name."""
    scope: list[ast.stmt] = ast.parse(path.read_text()).body
    marks: list[str] = []
    for part in function.split("::"):
        nodes = [node for node in scope if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part]
        assert nodes, f"{path} has no {function}"
        scope = nodes[-1].body
        marks += re.findall(r"pytest\.mark\.(\w+)", " ".join(map(ast.unparse, nodes[-1].decorator_list)))
    return marks


def test_nothing_is_listed_that_no_page_says():
    lost = [
        words
        for page in PAGES
        for each in NOT_PROMISED[page].values()
        for words in each
        if not any(sentence.startswith(words) for sentence in sentences(page))
    ]
    assert lost == []


def test_there_are_as_many_tests_as_promises_to_speak_of():
    assert len(PROMISES) >= 120 and len({promise.test for promise in PROMISES}) >= 90
