"""The fake kernels that builders declare in Python. Imported only for a load that has some."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opforge.errors import BuilderError


def register(
    op: str,
    names: tuple[str, ...],
    namespaces: list[str],
    fakes: Mapping[str, Any],
    registered: dict[str, Callable[..., Any]],
) -> None:
    """Registers fakes with torch, by public name, and adds them to `registered`: those replace earlier ones.

    `names` are the functions of the library, and `namespaces` those of `torch.ops` that hold its ops. Raises
    BuilderError for a fake of no op, and for what is no function.
    """
    import torch

    for name, fake in fakes.items():
        if not callable(fake):
            raise BuilderError(op, f"fakes[{name!r}]={fake!r}", "Expected a function that returns an empty result")
        public = next((f"{space}::{name}" for space in namespaces if hasattr(getattr(torch.ops, space), name)), None)
        if public is None:
            unknown = "torch does not have that op: fake kernels are for what TORCH_LIBRARY blocks define"
            advice = f"The library defines: {', '.join(names)}" if names else unknown
            raise BuilderError(op, f"fakes names {name!r}", advice)
        if registered.get(public) is not fake:
            torch.library.register_fake(public, fake, allow_override=public in registered)
            registered[public] = fake
