"""What Triton compiles for sm_90, and what our launcher passes to it, executed instruction by instruction."""

from __future__ import annotations

import json

import pytest
from support import child_processes
from support.gpu import triton_parts

pytestmark = [pytest.mark.compile, triton_parts.needs_triton]
CHECKS = ("softmax", "layer_norm", "rms_norm", "gelu", "swiglu", "quantizer", "adam", "lion", "lamb")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("machine")
    place = triton_parts.fake_driver(folder)
    code = "from support.ptx import ptx_checks; ptx_checks.main()"
    env = {"LD_LIBRARY_PATH": place, "OPFORGE_CACHE_DIR": str(folder / "store")}
    return json.loads(child_processes.run_python(code, timeout=300, env=env))


@pytest.mark.parametrize("name", [*CHECKS, "that_faults_are_caught"])
def test_compiled_kernels_compute_what_the_references_do(told, name):
    assert told["told"][name] == ""
