"""The example of docs/tuning.md, typed as the page has it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.paths import CHECKOUT
from support.text_files import write

from opforge.cli import group, kinds
from opforge.tuning import run

pytestmark = pytest.mark.compile


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with the files of the page, in which commands are typed."""
    page = Path(CHECKOUT, "docs", "tuning.md").read_text()
    files = re.findall(r"```(?:python|c\+\+)\n(?:#|//) (my_package/\w+\.\w+)\n(.*?)```", page, re.DOTALL)
    for path, text in files:
        write(tmp_path, path, text)
    assert sorted(path for path, _text in files) == [
        f"my_package/{name}" for name in ("builders.py", "cases.py", "sum.cpp")
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(run, "SECONDS", 0.3)
    return tmp_path


def test_the_pages_op_is_tuned_and_its_results_are_named_by_the_op_or_by_its_class(project):
    done = CliRunner().invoke(group, ["tune", "my_package.builders:SumBuilder", "--json"])
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    assert [row["size"] for row in result["rows"]] == [4096, 1 << 20]
    assert all(not other["why"].startswith("refused") for row in result["rows"] for other in row["others"])
    for name in ("my_sum", "my_package.builders:SumBuilder"):
        assert [stored.name for stored in kinds.stored(kinds.of("tuned"), [name])] == ["my_sum"]


def test_a_time_that_is_none_is_refused(project):
    done = CliRunner().invoke(group, ["tune", "my_package.builders:SumBuilder", "--budget", "5x"])
    assert done.exit_code == 2
    assert "'5x' is not a length of time: expected a number with s, min, h, d or w, such as 90s" in done.output


def test_a_module_that_is_none_is_wrong_usage():
    for name, problem in ((".", "'.' does not name a module"), ("no.such", "there is no module 'no' in this folder")):
        done = CliRunner().invoke(group, ["tune", name])
        assert done.exit_code == 2 and problem in done.stderr
