"""What one worker prepares of a test file is what pytest reads in the place of rewriting the file."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from support import rewritten

FILE = "def test_it():\n    assert 1 == 2\n"


def session_of(request, folder, number):
    config = SimpleNamespace(
        stash=request.config.stash, getini=request.config.getini, args=[str(folder)],
        workerinput={"workerid": f"gw{number}", "workercount": 2},
    )  # fmt: skip
    return SimpleNamespace(config=config)


def test_each_worker_rewrites_a_part_of_the_files_as_pytest_reads_it(request, tmp_path, monkeypatch):
    from _pytest.assertion import rewrite

    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(rewritten.tiers, "is_left_out", lambda _path: False)
    for name in ("test_one.py", "test_other.py", "test_wrong.py"):
        (tmp_path / name).write_text("def" if "wrong" in name else FILE)
    kept = {name: tmp_path / "__pycache__" / f"{name}{rewrite.PYC_TAIL}" for name in ("test_one", "test_other")}
    rewritten.make_part(session_of(request, tmp_path, 0))  # the wrong one is left to its import
    assert [path.exists() for path in kept.values()] == [True, False]
    rewritten.make_part(session_of(request, tmp_path, 1))
    for name, path in kept.items():
        code = rewrite._read_pyc(tmp_path / f"{name}.py", path)
        assert code is not None and "@pytest_ar" in code.co_names, "the assert is rewritten"


def test_a_process_that_writes_no_bytecode_prepares_nothing(request, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "test_one.py").write_text(FILE)
    rewritten.make_part(session_of(request, tmp_path, 0))
    assert [path.name for path in tmp_path.iterdir()] == ["test_one.py"]
