"""The GPUs' ops built without a GPU: by nvcc, and by hipcc from the same sources."""

import importlib
import shutil

import pytest

from opforge.builders.cuda import BUILDERS

pytestmark = pytest.mark.compile
LONG = pytest.mark.long("compiles for 10 to 30 s, by the compiler of another op")


def build(name, target):
    module, _, attribute = BUILDERS[name].partition(":")
    entry = getattr(importlib.import_module(module), attribute)(target=target).build()
    return entry.record


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("FusedLionBuilder", "cuda:sm_90"),  # FusedAdam's kernel differs only in the rule
        pytest.param("FusedLionBuilder", "cuda:sm_80+sm_90+ptx", marks=LONG),
        pytest.param("QuantizerBuilder", "cuda:sm_90", marks=LONG),
        pytest.param("FusedLambBuilder", "cuda:sm_90", marks=LONG),
        pytest.param("FPQuantizerBuilder", "cuda:sm_80+sm_90", marks=LONG),
    ],
)
def test_nvcc_builds_the_ops(name, target):
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc (the CUDA toolkit, or pip install nvidia-cuda-nvcc nvidia-cuda-runtime)")
    record = build(name, target)
    assert "opforge_register" in record["exports"]
    assert "libtorch_cuda.so" in record["needs"] and not any("cudart" in library for library in record["needs"])


@LONG  # tests/contract/test_device_toolchains.py builds a smaller one
@pytest.mark.parametrize("name", ["QuantizerBuilder", "FPQuantizerBuilder"])
def test_hipcc_builds_the_same_sources(name):
    if shutil.which("hipcc") is None:
        pytest.skip("needs hipcc (apt install hipcc)")
    record = build(name, "hip:gfx90a")
    assert "opforge_register" in record["exports"] and "libtorch_hip.so" in record["needs"]
