"""The GPUs' ops built without a GPU: by nvcc, and by hipcc from the same sources."""

import importlib
import os
import shutil

import pytest

from opforge.builders.cuda import BUILDERS

pytestmark = pytest.mark.compile


def build(name, target):
    module, _, attribute = BUILDERS[name].partition(":")
    entry = getattr(importlib.import_module(module), attribute)(target=target).build()
    return entry.record


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("FusedLionBuilder", "cuda:sm_80+sm_90+ptx"),  # FusedAdam's kernel differs only in the rule
        ("FusedLambBuilder", "cuda:sm_90"),
        ("QuantizerBuilder", "cuda:sm_90"),
        ("FPQuantizerBuilder", "cuda:sm_80+sm_90"),
    ],
)
def test_nvcc_builds_the_ops(name, target):
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc (the CUDA toolkit, or pip install nvidia-cuda-nvcc nvidia-cuda-runtime)")
    record = build(name, target)
    assert "opforge_register" in record["exports"]
    assert "libtorch_cuda.so" in record["needs"] and not any("cudart" in library for library in record["needs"])


@pytest.mark.parametrize("name", ["QuantizerBuilder", "FPQuantizerBuilder"])
def test_hipcc_builds_the_same_sources(name):
    if name == "FPQuantizerBuilder" and not os.environ.get("OPFORGE_LONG_TESTS"):
        pytest.skip("compiles for 20 s, by the compiler of the other op: set OPFORGE_LONG_TESTS=1")
    if shutil.which("hipcc") is None:
        pytest.skip("needs hipcc (apt install hipcc)")
    record = build(name, "hip:gfx90a")
    assert "opforge_register" in record["exports"] and "libtorch_hip.so" in record["needs"]
