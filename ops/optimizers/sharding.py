"""Parameters that are spread over processes (DTensor, as FSDP2 and tensor parallelism make them): each process steps
its own part, since the rules take each element by itself.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .launch import Launch


def is_spread(tensor: Tensor) -> bool:
    """Whether it is a DTensor. Asked by name: to import torch.distributed.tensor takes long."""
    return hasattr(tensor, "to_local")


def local(owner: str, launch: Launch, elementwise: bool) -> Launch:
    """The launch with this process's own parts of its tensors, which share their memory.

    Raises RuntimeError for a gradient or a state that is not spread as its parameter is, and where the rule is not
    `elementwise` for a parameter of which this process has only a part.
    """
    params, grads, states = [], [], []
    for param, grad, state in zip(launch.params, launch.grads, launch.states, strict=True):
        placements = getattr(param, "placements", None)
        if not elementwise and any(not placement.is_replicate() for placement in placements or ()):
            raise RuntimeError(
                f"{owner}: a parameter of shape {tuple(param.shape)} is spread over processes as {placements}, "
                "expected it whole: its rule needs norms of whole parameters; use an optimizer such as FusedAdam"
            )
        tensors = {name: value for name, value in state.items() if isinstance(value, Tensor) and name != "step"}
        for name, value in {"the gradient": grad, **tensors}.items():
            if getattr(value, "placements", None) != placements:
                raise RuntimeError(
                    f"{owner}: {name} of a parameter of shape {tuple(param.shape)} is spread over processes as "
                    f"{getattr(value, 'placements', None)}, expected {placements}, as the parameter: redistribute it"
                )
        params.append(_part(param))
        grads.append(_part(grad))
        states.append({name: _part(value) for name, value in state.items()})
    return launch._replace(params=params, grads=grads, states=states)


def _part(value: Any) -> Any:
    return value.to_local() if hasattr(value, "to_local") else value
