"""The contract of accelerators, for each of opforge's own: on its device if there is one, else over a fake device."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch.utils.cpp_extension  # reads torch.version at its import: before a test changes that
from support.devices.every_accelerator import is_fake, torch_device

from opforge.errors import SettingError
from opforge.testing import AcceleratorContract
from opforge.testing.accelerators.devices import BY_INDEX
from opforge.testing.accelerators.interface import CLASSES, METHODS

NAMES = """
is_synchronized_device use_host_timers resolves_data_dependency handles_memory_backpressure device_name device
device_arch set_device current_device current_device_name device_count synchronize random set_rng_state get_rng_state
manual_seed manual_seed_all initial_seed default_generator Stream stream current_stream default_stream Event
empty_cache memory_allocated max_memory_allocated reset_max_memory_allocated memory_cached max_memory_cached
reset_max_memory_cached memory_stats reset_peak_memory_stats memory_reserved max_memory_reserved total_memory
available_memory mem_get_info is_bf16_supported is_fp16_supported is_fp64_supported supported_dtypes is_available
range_push range_pop lazy_call communication_backend_name init_distributed is_triton_supported prefer_triton_grouped_mm
is_current_stream_capturing create_graph capture_to_graph replay_graph BFloat16Tensor ByteTensor DoubleTensor
FloatTensor HalfTensor IntTensor LongTensor pin_memory is_pinned unpin_memory pin_empty pin_empty_like
register_host_memory unregister_host_memory pin_memory_alignment on_accelerator op_builder_dir create_op_builder
get_op_builder load_op op_builders op_builder_problems build_extension export_envs visible_devices_envs
set_visible_devices_envs get_compile_backend set_compile_backend target capabilities unavailable_reason
amp index_of multiprocessor_count raw_stream_function set_stream empty_host_cache reset_accumulated_memory_stats
get_rng_state_all set_rng_state_all graph_pool_handle is_fp8_supported tensor_dtypes
""".split()  # noqa: SIM905  # ninety names are easier to read as words than as a column of strings
RANKS = {"cpu", "null", "hpu"}
"""Accelerators on which a number stands for a process: any number is one."""
GRAPHS = {"cuda", "xpu", "npu", "mlu", "supa", "klxpu", "hpu"}


class TestContract(AcceleratorContract):
    @pytest.fixture(autouse=True)
    def in_turn(self, accelerator):
        self.accelerator = accelerator

    @property
    def tensor_device(self):
        return torch_device(self.accelerator)

    @property
    def torch_has_device(self):
        return not is_fake(self.accelerator)  # otherwise the vendor's package registers the type


def test_the_contract_calls_every_method_of_the_interface():
    assert sorted({*METHODS, *CLASSES}) == sorted(NAMES)
    assert len(BY_INDEX) > 20 and {"device", "set_device", "synchronize", "available_memory"} <= set(BY_INDEX)


def test_the_page_has_every_public_name_of_torch_accelerator_and_names_methods_that_exist():
    page = (Path(__file__).parents[2] / "docs" / "accelerators.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:3] for line in page.partition("\n| torch.accelerator |")[2].splitlines()]
    rows = list(itertools.takewhile(bool, rows[2:]))
    listed = {name for theirs, _ in rows for name in re.findall(r"`([\w.]+)\(", theirs)}
    public = {*torch.accelerator.__all__, *(f"random.{name}" for name in _random_names())}
    assert len(public) > 12 and public <= listed, f"docs/accelerators.md lacks {sorted(public - listed)}"
    ours = {name for _, here in rows for name in re.findall(r"`(\w+)\(", here)} - {"get_accelerator"}
    assert ours <= set(NAMES), f"the page names {sorted(ours - set(NAMES))}, which no accelerator has"


def _random_names():
    """Returns the names of torch.accelerator.random, which torch has from 2.14 on."""
    return getattr(getattr(torch.accelerator, "random", None), "__all__", ())


def test_a_device_that_does_not_exist_is_refused_by_every_method_unless_numbers_stand_for_processes(accelerator):
    contract = TestContract()
    contract.accelerator = accelerator
    count = accelerator.device_count()
    assert accelerator.index_is_rank == (accelerator.name in RANKS)
    for device in (count, count + 7, *contract.device_names(count)):
        for name in BY_INDEX:
            if accelerator.index_is_rank or name == "device_name":
                contract.call(name, device)
            else:
                with pytest.raises(SettingError, match=f"expected a number below {count}, the number of"):
                    contract.call(name, device)


def test_the_builders_of_our_own_accelerators_are_in_a_package_of_ours(accelerator):
    assert accelerator.op_builder_dir().startswith("opforge.builders.")


def test_an_accelerators_name_is_what_deepspeed_reads(accelerator):
    assert accelerator._name == accelerator.name


def test_the_accelerators_with_graphs_are_those_of_the_documentation(accelerator):
    absent = accelerator.name == "xpu" and not hasattr(torch.xpu, "XPUGraph")  # as in torch 2.10
    assert accelerator.capabilities().graphs == (accelerator.name in GRAPHS and not absent)
