"""Training with a real, unmodified DeepSpeed on opforge, compared with torch alone.

Building DeepSpeed's own CPU kernel takes a minute or more: the third tier compares with that.
"""

from __future__ import annotations

import pytest
import torch
from support import deepspeed_job

if not deepspeed_job.is_installed():
    pytest.skip(deepspeed_job.MISSING, allow_module_level=True)

LONG = pytest.mark.long("builds DeepSpeed's own kernel, for a minute")

TRAIN = """
import json, os
if os.environ["ON_OPFORGE"] == "1":  # before DeepSpeed is imported
    import opforge.compat.deepspeed
    opforge.compat.deepspeed.install()
import torch, deepspeed
deepspeed.ops.__compatible_ops__ = {}  # one rank needs no shared-memory op, which DeepSpeed takes minutes to build
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
settings = {"lr": 1e-2, "weight_decay": 0.01}
config = {
    "train_batch_size": 8,
    "zero_optimization": {"stage": int(os.environ["STAGE"]), "offload_optimizer": {"device": "cpu"}},
    "optimizer": {"type": "AdamW", "params": settings},
}
engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
losses = []
for _ in range(20):
    loss = ((engine(x) - x.sum(1, keepdim=True)) ** 2).mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
op = getattr(optimizer.optimizer, "ds_opt_adam", None)
print(json.dumps({"losses": losses, "optimizer": type(optimizer.optimizer).__name__, "op": getattr(op, "path", "")}))
"""


@pytest.fixture(scope="module")
def trained(shared_store, tmp_path_factory):
    """The result of training on opforge with ZeRO's stage 2."""
    variables = {"ON_OPFORGE": "1", "STAGE": "2"}
    return deepspeed_job.run(TRAIN, shared_store, tmp_path_factory.mktemp("trained"), **variables)


def losses_of_torch():
    """Returns the losses of the same training by torch alone."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(20):
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # as DeepSpeed does by default
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_with_opforges_kernel_has_the_losses_of_torchs_optimizer(trained, shared_store):
    assert trained["optimizer"] == "DeepSpeedCPUAdam"
    assert trained["op"].startswith(str(shared_store))
    assert trained["losses"][-1] < 0.1 * trained["losses"][0]
    assert trained["losses"] == pytest.approx(losses_of_torch(), rel=1e-4)


@pytest.mark.long("trains once more with DeepSpeed")
def test_zero_3_has_the_same_losses(trained, shared_store, tmp_path):
    stage_3 = deepspeed_job.run(TRAIN, shared_store, tmp_path, ON_OPFORGE="1", STAGE="3")
    assert stage_3["losses"] == pytest.approx(trained["losses"], rel=1e-4)


@LONG
@pytest.mark.timeout(1200)
def test_training_has_the_losses_of_deepspeeds_own_kernel(trained, shared_store, tmp_path):
    plain = deepspeed_job.run(TRAIN, shared_store, tmp_path, timeout=1000, ON_OPFORGE="0", STAGE="2")
    assert (plain["optimizer"], plain["op"]) == ("DeepSpeedCPUAdam", "")
    assert trained["losses"] == pytest.approx(plain["losses"], rel=1e-4)
