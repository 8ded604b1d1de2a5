"""Makes the process group a backend of torch.distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .names import BACKEND

if TYPE_CHECKING:
    from datetime import timedelta


def register() -> None:
    """Makes "opforge_shm" a backend of torch.distributed, for CPU tensors. It may be called again.

    Raises RuntimeError if torch was built without torch.distributed.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise RuntimeError(f"{BACKEND}: this torch was built without torch.distributed")
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _process_group, devices=["cpu"])


def _process_group(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    from .process_group import SharedMemoryGroup

    return SharedMemoryGroup(store, rank, size, timeout)
