"""Parameters that are sharded over processes: DTensors, as FSDP2 and tensor parallelism create them, and FSDP1's.

Each process updates its own part. That is correct because an elementwise rule uses only the numbers of one element.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from .launch import Launch


def is_sharded(tensor: Tensor) -> bool:
    """Returns whether the tensor is a DTensor, by an attribute: importing torch.distributed.tensor is slow."""
    return hasattr(tensor, "to_local")


def check_whole(owner: str, params: Iterable[Tensor]) -> None:
    """Raises RuntimeError if a parameter, as this process holds it, is not one whole parameter of the model."""
    for param in params:
        placements = getattr(param, "placements", None)
        if any(not placement.is_replicate() for placement in placements or ()):
            cause = f"is sharded over processes as {placements}"
        elif getattr(param, "_fsdp_flattened", False):
            cause = "is FullyShardedDataParallel's, which splits and joins parameters"
        else:
            continue
        raise RuntimeError(
            f"{owner}: a parameter of shape {tuple(param.shape)} {cause}, expected a whole one: the rule needs norms "
            "of whole parameters; use an optimizer such as FusedAdam, or DistributedDataParallel"
        )


def local_launch(owner: str, launch: Launch) -> Launch:
    """Returns the launch with this process's parts of its tensors, which share the tensors' memory.

    Raises RuntimeError if a gradient or a state is sharded differently from its parameter.
    """
    params, grads, states = [], [], []
    for param, grad, state in zip(launch.params, launch.grads, launch.states, strict=True):
        placements = getattr(param, "placements", None)
        tensors = {name: value for name, value in state.items() if isinstance(value, Tensor) and name != "step"}
        for name, value in {"the gradient": grad, **tensors}.items():
            if getattr(value, "placements", None) != placements:
                raise RuntimeError(
                    f"{owner}: {name} of a parameter of shape {tuple(param.shape)} is sharded over processes as "
                    f"{getattr(value, 'placements', None)}, expected that of the parameter, {placements}: "
                    "redistribute it"
                )
        params.append(local_part(param))
        grads.append(local_part(grad))
        states.append({name: local_part(value) for name, value in state.items()})
    return launch._replace(params=params, grads=grads, states=states)


def local_part(value: Any) -> Any:
    """Returns the part of a DTensor that this process holds, and any other value as it is."""
    return value.to_local() if hasattr(value, "to_local") else value
