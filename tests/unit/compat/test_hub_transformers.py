"""A model of transformers, which calls `kernels` itself, gets a layer's kernel from an installed package."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
from support.kernels.registries import Registry
from support.paths import SOURCE_TREE

NORMS = """\
import torch

CALLS = []


class RMSNorm(torch.nn.Module):
    def forward(self, hidden_states):
        CALLS.append(1)
        hidden = hidden_states.to(torch.float32)
        hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * hidden.to(hidden_states.dtype)


class layers:
    RMSNorm = RMSNorm
"""
SCRIPT = """\
import sys
import kernels, torch
from opforge.compat import hub_layers
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
model, tokens = LlamaForCausalLM(config).eval(), torch.arange(8)[None]
with torch.no_grad():
    before = model(tokens).logits
hub_layers.install(lock=sys.argv[1])
repository = kernels.LayerRepository("Acme/Norms", layer_name="RMSNorm", version=1)
with kernels.use_kernel_mapping({"RMSNorm": {"cpu": repository}}):
    model.set_use_kernels(True)
with torch.no_grad():
    after = model(tokens).logits
calls = kernels.get_kernel("Acme/Norms", version=1).CALLS
print(torch.equal(before, after), len(calls))
"""


@pytest.fixture
def python():
    """A Python with transformers, which is too large for the test environment: 140 MB with what it needs."""
    chosen = os.environ.get("HUB_KERNELS_PYTHON", sys.executable)
    if chosen == sys.executable and not all(map(importlib.util.find_spec, ("transformers", "kernels"))):
        text = "pip install transformers==5.22.2 kernels==0.17.2, or HUB_KERNELS_PYTHON=python with them"
        pytest.skip(f"not run: needs transformers and the hub's loader: {text}")
    return chosen


def test_a_llama_gets_its_norm_from_a_locked_package_and_gives_the_same_logits(python, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    registry = Registry(tmp_path)
    registry.publish("acme/norms", text=NORMS)
    release = registry.install("acme/norms")
    lock = tmp_path / "opforge.lock"
    lock.write_text(f'format = 2\n[[kernel]]\nname = "acme/norms"\nversion = "1"\ndigest = "{release.digest}"\n')
    environment = {**os.environ, "OPFORGE_KERNEL_PATH": registry.root.path, "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = SOURCE_TREE
    command = [python, "-c", SCRIPT, str(lock)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.stdout == "True 5\n", done.stderr
