"""NVIDIA's driver without a start of CUDA: its version, and the variable that selects devices."""

from __future__ import annotations

import pytest

from opforge.accelerator.vendors import nvidia


def test_the_installed_drivers_version_is_read():
    version = nvidia.driver_version()
    assert version is None or version >= (9, 0)


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        (None, None),
        ("", ()),
        ("0,1", ("0", "1")),
        (" 1 , 0 ", ("1", "0")),
        ("1gpu,02", ("1", "2")),
        ("0,-1,1", ("0",)),
        ("0,,1", ("0",)),
        ("1,1", ()),
        ("GPU-a,GPU-b,0", ("GPU-a", "GPU-b")),
        ("0,GPU-a", ("0",)),
        ("MIG-a,GPU-b", ("MIG-a",)),
        ("MIG-GPU-a/1/0", ("MIG-GPU-a/1/0",)),
    ],
)
def test_the_variable_is_parsed_as_cuda_parses_it(monkeypatch, value, entries):
    if value is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert nvidia.visible_devices() == entries
