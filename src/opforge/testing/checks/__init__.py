"""The short contracts by which `opforge check` compares our ops with their references, on any device.

`CHECKS` has a line for each op that has one. Another package adds one by an entry point in the group `opforge.checks`:
its name is the builder's class, its value names a class of contracts.
"""

from __future__ import annotations

GROUP = "opforge.checks"
"""The group of entry points by which another package adds a check."""
CHECKS: dict[str, str] = {
    "AsyncIOBuilder": "opforge.testing.checks.memory:AsyncIOCheck",
    "CPUAdagradBuilder": "opforge.testing.checks.optimizers:AdagradCheck",
    "CPUAdamBuilder": "opforge.testing.checks.optimizers:AdamCheck",
    "CPULionBuilder": "opforge.testing.checks.optimizers:LionCheck",
    "EvoformerAttnBuilder": "opforge.testing.checks.attention:EvoformerCheck",
    "FPQuantizerBuilder": "opforge.testing.checks.quantizers:FPQuantizerCheck",
    "FusedAdamBuilder": "opforge.testing.checks.optimizers:FusedAdamCheck",
    "FusedLambBuilder": "opforge.testing.checks.optimizers:FusedLambCheck",
    "FusedLionBuilder": "opforge.testing.checks.optimizers:FusedLionCheck",
    "InferenceBuilder": "opforge.testing.checks.transformer:InferenceCheck",
    "InferenceCoreBuilder": "opforge.testing.checks.transformer:InferenceCoreCheck",
    "PinMemoryBuilder": "opforge.testing.checks.memory:PinMemoryCheck",
    "QuantizerBuilder": "opforge.testing.checks.quantizers:QuantizerCheck",
    "RaggedOpsBuilder": "opforge.testing.checks.ragged:RaggedOpsCheck",
    "RaggedUtilsBuilder": "opforge.testing.checks.memory:HostBufferCheck",
    "RandomLTDBuilder": "opforge.testing.checks.transformer:RandomLTDCheck",
    "ShareMemCommBuilder": "opforge.testing.checks.collectives:ShareMemCommCheck",
    "SparseAttnBuilder": "opforge.testing.checks.attention:SparseCheck",
    "SpatialInferenceBuilder": "opforge.testing.checks.transformer:SpatialInferenceCheck",
    "StochasticTransformerBuilder": "opforge.testing.checks.transformer:TransformerCheck",
    "TransformerBuilder": "opforge.testing.checks.transformer:TransformerCheck",
    "UtilsBuilder": "opforge.testing.checks.memory:ByteTensorCheck",
}
"""Builder -> "module:class". The modules import torch: they are imported in the process that checks."""
