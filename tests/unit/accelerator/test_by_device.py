"""Which accelerator serves a tensor: the one in use if it is for the tensor's device, else the device's own."""

from __future__ import annotations

import pytest
from support import child_processes
from support.devices import vendor_modules

from opforge.accelerator import get_accelerator, use_accelerator
from opforge.accelerator.by_device import accelerator_of
from opforge.errors import UnknownAcceleratorError


def test_the_accelerator_in_use_serves_the_tensors_of_its_device():
    with use_accelerator("cpu") as in_use:
        assert accelerator_of("cpu") is in_use is get_accelerator()


def test_tensors_of_another_device_get_the_accelerator_of_that_name(monkeypatch, tmp_path):
    with use_accelerator("cpu"):
        other = accelerator_of("cuda")
        assert other.name == "cuda" and accelerator_of("cuda") is other
        accelerator, _ = vendor_modules.install("cuda", monkeypatch, tmp_path)
        with use_accelerator(accelerator):
            assert accelerator_of("cuda") is accelerator and accelerator_of("cpu").name == "cpu"


@pytest.mark.test_all("a process with torch")
def test_a_setting_that_names_no_accelerator_does_not_matter_to_tensors():
    code = "from opforge.accelerator.by_device import accelerator_of; print(accelerator_of('cpu').name)"
    assert child_processes.run_with_torch(code, env={"OPFORGE_ACCELERATOR": "nothing_like_it"}).strip() == "cpu"


def test_a_device_type_without_an_accelerator_is_unknown():
    with pytest.raises(UnknownAcceleratorError, match="no_such_type"):
        accelerator_of("no_such_type")
