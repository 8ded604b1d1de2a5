"""Fixtures of the launcher's tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import text_files

from opforge.accelerator.select import get_accelerator
from opforge.launch.plan import Plan
from opforge.launch.planner import Options, make_plan


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., Plan]:
    """Returns a function that makes the plan of options, with a hostfile of these lines if there are any."""

    def make(hosts: str = "", environ: Mapping[str, str] | None = None, **options: Any) -> Plan:
        if hosts:
            file = tmp_path / "hosts"
            file.write_text(hosts)
            options["hostfile"] = str(file)
        return make_plan(Options(program=("train.py", "--lr", "1"), **options), environ or {}, get_accelerator)

    return make


@pytest.fixture
def add_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that makes shell scripts with these names and bodies, the only programs on PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def add(**bodies: str) -> None:
        for name, body in bodies.items():
            text_files.write_script(folder, name, body)

    return add
