"""An unmodified project from the package index on opforge: torch-spline-conv, with ATen kernels for the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile

import pytest
from support import child_processes

pytest.importorskip("torch", reason="pip install torch")
pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("OPFORGE_NETWORK_TESTS"),
        reason="fetches a project from the package index and compiles it for minutes: OPFORGE_NETWORK_TESTS=1",
    ),
    pytest.mark.timeout(1800),
]

USE = """
import torch
from torch_spline_conv import spline_basis, spline_weighting
pseudo = torch.tensor([[0.0], [0.0625], [0.25], [0.75], [0.9375], [1.0]])
basis, index = spline_basis(pseudo, torch.tensor([5]), torch.tensor([1], dtype=torch.uint8), 1)
assert basis.tolist() == [[1, 0], [0.75, 0.25], [1, 0], [1, 0], [0.25, 0.75], [1, 0]]
x, weight = torch.randn(6, 2), torch.randn(5, 2, 4)
expected = sum(basis[:, s, None] * torch.einsum("ei,eio->eo", x, weight[index[:, s]]) for s in range(2))
torch.testing.assert_close(spline_weighting(x, weight, basis, index), expected)
"""


def test_extensions_are_built_once_and_compute_the_expected_values(tmp_path):
    fetch = ["download", "-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "torch-spline-conv==1.2.2"]
    subprocess.run([sys.executable, "-m", "pip", *fetch], cwd=tmp_path, check=True, stdin=subprocess.DEVNULL)
    events_by_checkout = []
    for checkout in ("one", "two"):
        with tarfile.open(tmp_path / "torch_spline_conv-1.2.2.tar.gz") as archive:
            archive.extractall(tmp_path / checkout, filter="data")
        folder = tmp_path / checkout / "torch_spline_conv-1.2.2"
        log = tmp_path / f"{checkout}.jsonl"
        argv = [sys.executable, "-m", "opforge.compat.cpp_extension", "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(
            argv, cwd=folder, env=child_processes.environment(OPFORGE_LOG=str(log)), check=True, timeout=1500
        )
        events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
        events_by_checkout.append([event for event in events if event in ("hit", "build")])
        child_processes.run_python(USE, cwd=folder)
    assert events_by_checkout == [["build"] * 3, ["hit"] * 3]
