"""The README's own code, run as a reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compile
README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    """The fenced code blocks of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def run(code: str, folder: Path, **environment: str) -> str:
    """Run code as a script in `folder`, in a Python of its own; returns what it printed."""
    script = folder / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=folder,
        env={**os.environ, "OPFORGE_CACHE_DIR": str(folder / "cache"), **environment},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (source,) = blocks("cpp")
    (tmp_path / "relu.cpp").write_text(source)
    return tmp_path


def test_the_op_of_ones_own_loads_and_is_traced(folder: Path) -> None:
    (code,) = [block for block in blocks("python") if "opforge.load(" in block]
    checks = """
x = torch.randn(9)
assert torch.equal(relu.relu(x), x.clamp(min=0))
assert torch.equal(torch.ops.my_ops.relu(x), x.clamp(min=0))
assert torch.equal(torch.compile(relu.relu, fullgraph=True, backend="eager")(x), x.clamp(min=0))
torch.library.opcheck(relu.relu, (x,))
print("checked")
"""
    assert "checked" in run(code + checks, folder)


def test_the_declared_builder_loads(folder: Path) -> None:
    (code,) = [block for block in blocks("python") if "class ReluBuilder" in block]
    assert "built" in run(code + "\nprint(relu.origin)\n", folder)
    assert "cache" in run(code + "\nprint(relu.origin)\n", folder)


def test_a_prebuilt_op_loads_from_its_layer_without_a_compiler(folder: Path) -> None:
    (code,) = [block for block in blocks("python") if "class ReluBuilder" in block]
    (folder / "my_package").mkdir()
    (folder / "my_package" / "ops.py").write_text(code.replace("\nrelu = ReluBuilder().load()", ""))
    (folder / "relu.cpp").rename(folder / "my_package" / "relu.cpp")
    command = [os.path.join(os.path.dirname(sys.executable), "build-ops"), "my_package.ops:ReluBuilder"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OPFORGE_CACHE_DIR": str(folder / "cache")}
    subprocess.run([*command, "--cpu-level", "x86-64", "--out", "prebuilt"], cwd=folder, env=environment, check=True)
    load = "from my_package.ops import ReluBuilder\nprint(ReluBuilder().load().origin)\n"
    printed = run(
        load, folder, OPFORGE_CACHE_LAYERS="prebuilt", PATH="/nonexistent", OPFORGE_CACHE_DIR=str(folder / "other")
    )
    assert printed.strip() == str(folder / "prebuilt")
    assert not (folder / "other").exists()
