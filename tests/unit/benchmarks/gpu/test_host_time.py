"""The benchmark of the host's time of a call: each of its calls reaches a launch, and nothing behind it."""

from __future__ import annotations

import torch


def test_each_call_launches_a_declared_kernel_and_no_driver_is_needed(checkout_on_path, monkeypatch):
    from benchmarks.gpu import host_time

    from opforge.ops.triton import registry

    launched = []

    class Noted(host_time.HostOnly):
        def launch(self, name, grid, *arguments):
            super().launch(name, grid, *arguments)
            launched.append(name)

    monkeypatch.setattr(host_time, "HostOnly", Noted)
    monkeypatch.setattr(host_time, "COUNTS", (2,))
    host_time.bind()
    try:
        for row in host_time.rows():
            launched.clear()
            with torch.set_grad_enabled("backward" in row.name):
                row.ours()
            assert len(launched) == (2 if "backward" in row.name else 1), row.name
        assert set(host_time.cost({"nothing": lambda: None}, 1)) == {"nothing"}
    finally:
        registry.reset()
