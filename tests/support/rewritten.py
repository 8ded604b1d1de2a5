"""Test files whose asserts pytest has rewritten: each is made by one of xdist's workers, and read by the others.

Without this each worker of a new checkout rewrites every file, which takes ten seconds of a processor. The workers
begin at the same time and with the same file, so none finds what another has made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support import tiers


def make_part(session: pytest.Session) -> None:
    """Rewrites this worker's part of the files that are collected, if it may write bytecode.

    What it cannot do is left to the import of the file: a file that is no Python is reported there.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for path in [*_files(session.config)][number::count]:
        with suppress(ImportError, AttributeError, OSError, SyntaxError, TypeError, ValueError):
            _make(path, session.config)


def _files(config: pytest.Config) -> Iterator[Path]:
    """Yields the test files of the tier that are below what the command line names."""
    for named in config.args:
        path = Path(named.partition("::")[0]).absolute()
        files = path.rglob("test_*.py") if path.is_dir() else [path]
        yield from (file for file in sorted(files) if not tiers.is_left_out(file))


def _make(path: Path, config: pytest.Config) -> None:
    """Writes what pytest's import of a file would write. pytest has no public function for that."""
    from _pytest.assertion import rewrite

    state = config.stash[rewrite.assertstate_key]
    folder = rewrite.get_cache_dir(path)
    target = folder / f"{path.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(path, target) is None and rewrite.try_makedirs(folder):
        source, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(state, code, source, target)
