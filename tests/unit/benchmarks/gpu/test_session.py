"""The commands of benchmarks/gpu/README.md for a session on a GPU: they leave out no op and no test."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from support.paths import CHECKOUT

from opforge.builders.cuda import BUILDERS

TEXT = (Path(CHECKOUT) / "benchmarks" / "gpu" / "README.md").read_text(encoding="utf-8")


def test_every_op_is_built_before():
    found = re.search(r"^build-ops (.*?) --target cuda:", TEXT, re.DOTALL | re.MULTILINE)
    assert found and sorted(found[1].replace("\\", "").split()) == sorted(
        name.removesuffix("Builder") for name in BUILDERS
    )


def test_every_test_is_run_once():
    commands = [line for line in TEXT.splitlines() if line.startswith(("run tests/device", "for file in tests/device"))]
    script = "run() { echo $1; }\n" + "\n".join(commands)
    done = subprocess.run(["bash", "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    files = sorted(os.listdir(Path(CHECKOUT) / "tests" / "device"))
    expected = [f"tests/device/{name}" for name in files if name.startswith("test_") and name.endswith(".py")]
    assert sorted(done.stdout.split()) == expected
