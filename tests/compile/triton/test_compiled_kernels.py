"""The Triton kernels compiled for sm_90 and launched by opforge's launcher; an interpreter executes their PTX."""

from __future__ import annotations

import json

import pytest
from support import child_processes, tiers
from support.gpu import triton_parts

pytestmark = [pytest.mark.compile, triton_parts.needs_triton]
CHECKS = ("softmax", "adam", "quantizer_of_special_values", "special_softmax", "that_faults_are_detected")
LONG_CHECKS = (
    "swiglu",
    "quantizer",
    "layer_norm",
    "rms_norm",
    "gelu",
    "lion",
    "lamb",
    "special_rows",
    "special_long_rows",
    "special_gradients",
)
"""Kernels of the same forms. All ten take a minute: `make test-long`."""
LONG = tiers.is_long()
NAMES = (*CHECKS, *LONG_CHECKS) if LONG else CHECKS


ATTENTION = ("dense_32", "lowest_masks", "special_values", "traffic", "unfinished_copies_are_detected")
LONG_ATTENTION = (
    "blocks_of_16",
    "pages_32",
    "dense_64",
    "dense_128",
    "dense_256",
    "causal",
    "blocks_64",
    "blocks_128",
    "blocks_256",
    "pages_128",
)


def test_compiled_kernels_agree_with_the_references(cuda_driver, tmp_path):
    """One test for all kernels: two workers would each compile and execute every one of them."""
    code = f"from support.ptx import ptx_checks; ptx_checks.main({NAMES!r}, short={not LONG})"
    env = {"LD_LIBRARY_PATH": cuda_driver, "OPFORGE_CACHE_DIR": str(tmp_path / "store")}
    errors = json.loads(child_processes.run_with_torch(code, timeout=300, env=env))["errors"]
    assert errors == dict.fromkeys(NAMES, "")


def test_compiled_attention_agrees_with_the_references(cuda_driver, tmp_path):
    """For sm_80: on sm_90 products of matrices are wgmma, which the interpreter does not know."""
    names = (*ATTENTION, *LONG_ATTENTION) if LONG else ATTENTION
    code = f"from support.ptx import attention_checks; attention_checks.main({names!r})"
    env = {"LD_LIBRARY_PATH": cuda_driver, "OPFORGE_CACHE_DIR": str(tmp_path / "store")}
    env["FAKE_GPU_CAPABILITY"] = "80"
    errors = json.loads(child_processes.run_with_torch(code, timeout=300, env=env))["errors"]
    assert errors == dict.fromkeys(names, "")


@pytest.mark.long("takes 20 s; those of rows above have the same forms, and test_transformer_ops.py has the values")
def test_compiled_ops_for_transformers_agree_with_the_references_and_move_the_least_bytes(cuda_driver, tmp_path):
    code = "from support.ptx import transformer_checks; transformer_checks.main()"
    env = {"LD_LIBRARY_PATH": cuda_driver, "OPFORGE_CACHE_DIR": str(tmp_path / "store")}
    errors = json.loads(child_processes.run_with_torch(code, timeout=300, env=env))["errors"]
    assert errors == dict.fromkeys(("channels", "special_values", "tokens", "ragged", "core"), "")


@pytest.mark.long("compiles 125 kernels for two architectures")
def test_no_kernel_for_transformers_spills(tmp_path, monkeypatch):
    from opforge.builders.inspection.examine import examine, inspectable_files
    from opforge.builders.triton import transformer

    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "store"))
    counts = {transformer.SpatialInferenceBuilder: 18, transformer.RandomLTDBuilder: 8}
    for builder, count in (counts | {transformer.InferenceCoreBuilder: 99}).items():
        entry = builder("cuda:sm_80+sm_90").build()
        kernels = [kernel for file in inspectable_files(entry.folder) for kernel in examine(file)["kernels"]]
        assert len(kernels) == 2 * count
        assert not any(kernel["spills"] or kernel["stack"] for kernel in kernels)
        assert max(kernel["registers"] for kernel in kernels) <= 64
