"""The Triton kernels compiled for sm_90 and launched by opforge's launcher; an interpreter executes their PTX."""

from __future__ import annotations

import json

import pytest
from support import child_processes
from support.gpu import triton_parts

pytestmark = [pytest.mark.compile, triton_parts.needs_triton]
CHECKS = ("softmax", "layer_norm", "rms_norm", "gelu", "swiglu", "quantizer", "adam", "lion", "lamb")


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """The error of each check by its name; "" if it passed."""
    folder = tmp_path_factory.mktemp("machine")
    driver = triton_parts.fake_driver(folder)
    code = "from support.ptx import ptx_checks; ptx_checks.main()"
    env = {"LD_LIBRARY_PATH": driver, "OPFORGE_CACHE_DIR": str(folder / "store")}
    return json.loads(child_processes.run_python(code, timeout=300, env=env))["errors"]


@pytest.mark.parametrize("name", [*CHECKS, "that_faults_are_detected"])
def test_compiled_kernels_agree_with_the_references(errors, name):
    assert errors[name] == ""
