"""The Triton kernels compiled for sm_90 and launched by opforge's launcher; an interpreter executes their PTX."""

from __future__ import annotations

import json
import os

import pytest
from support import child_processes
from support.gpu import triton_parts

pytestmark = [pytest.mark.compile, triton_parts.needs_triton]
CHECKS = ("softmax", "swiglu", "quantizer", "adam", "that_faults_are_detected")
LONG_CHECKS = ("layer_norm", "rms_norm", "gelu", "lion", "lamb")
"""Kernels of the same forms. All ten take a minute: OPFORGE_LONG_TESTS=1."""
NAMES = (*CHECKS, *LONG_CHECKS) if os.environ.get("OPFORGE_LONG_TESTS") else CHECKS


def test_compiled_kernels_agree_with_the_references(tmp_path):
    """One test for all kernels: two workers would each compile and execute every one of them."""
    code = f"from support.ptx import ptx_checks; ptx_checks.main({NAMES!r})"
    env = {"LD_LIBRARY_PATH": triton_parts.fake_driver(tmp_path), "OPFORGE_CACHE_DIR": str(tmp_path / "store")}
    errors = json.loads(child_processes.run_python(code, timeout=300, env=env))["errors"]
    assert errors == dict.fromkeys(NAMES, "")
