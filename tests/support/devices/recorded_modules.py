"""The names in vendors' modules (`torch.cuda`, `torch.npu`, ...), and fake modules that offer no other names.

torch.cuda, torch.xpu and torch.mps are part of every torch, so their names are read from there. The other names are
recorded here, from
- npu: `__all__` of torch_npu/npu/__init__.py (Ascend/pytorch), and `_lazy_call`, `default_generators` in its files;
- mlu: `__all__` of torch_mlu/mlu/__init__.py (Cambricon/torch_mlu), and `_lazy_call`;
- supa: `__all__` of torch_supa/supa/__init__.py (BIRENSUPA/torch-supa), and what it imports from .utils;
- hpu: habana_frameworks/torch/hpu/{__init__,events,graphs,memory,random,streams}.py (HabanaAI/gaudi-pytorch-bridge);
- klxpu: torch_xmlir keeps the names of torch.cuda;
- sdaa: no source is public: the names that DeepSpeed 0.19.8's accelerator for it and accelerate call.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch

CUDA_LIKE = """
Event Stream StreamContext BFloat16Tensor ByteTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor _lazy_call
can_device_access_peer current_device current_stream default_generators default_stream device device_count empty_cache
get_device_name get_device_properties get_rng_state get_rng_state_all graph graph_pool_handle init initial_seed
ipc_collect is_available is_bf16_supported is_current_stream_capturing is_initialized make_graphed_callables manual_seed
manual_seed_all max_memory_allocated max_memory_cached max_memory_reserved mem_get_info memory_allocated memory_cached
memory_reserved memory_snapshot memory_stats memory_stats_as_nested_dict memory_summary reset_accumulated_memory_stats
reset_max_memory_allocated reset_max_memory_cached reset_peak_memory_stats seed seed_all set_device set_rng_state
set_rng_state_all set_stream stream synchronize get_device_capability
"""
NAMES = {
    "npu": frozenset((CUDA_LIKE + "NPUGraph mstx npurt device_of utilization set_option config").split()),
    "mlu": frozenset((CUDA_LIKE + "MLUGraph cnpx cnrt check_error device_of graphs memory random streams").split()),
    "supa": frozenset((CUDA_LIKE + "SUPAGraph brtx supart check_error bccl profiler random MemPool").split()),
    "klxpu": frozenset(dir(torch.cuda)),
    "hpu": frozenset(
        """
        Event HPUGraph Stream StreamContext can_device_access_peer current_device current_stream default_stream device
        device_count device_of get_arch_list get_device_capability get_device_name get_device_properties get_rng_state
        get_rng_state_all graph init initial_seed is_available is_bf16_supported is_initialized make_graphed_callables
        manual_seed manual_seed_all max_memory_allocated max_memory_cached max_memory_reserved mem_get_info
        memory_allocated memory_cached memory_reserved memory_stats memory_summary memory_usage random
        reset_accumulated_memory_stats reset_peak_memory_stats seed seed_all set_device set_rng_state set_rng_state_all
        set_stream stream synchronize utilization BFloat16Tensor ByteTensor DoubleTensor FloatTensor HalfTensor
        IntTensor LongTensor
        """.split()  # noqa: SIM905  # as words, these can be compared with the source
    ),
    "sdaa": frozenset(
        """
        Event Stream _lazy_call current_device current_stream default_generators default_stream device device_count
        empty_cache get_device_name get_device_properties get_rng_state initial_seed is_available is_bf16_supported
        manual_seed manual_seed_all max_memory_allocated max_memory_cached max_memory_reserved mem_get_info
        memory_allocated memory_cached memory_reserved memory_stats reset_max_memory_allocated reset_max_memory_cached
        reset_peak_memory_stats set_device set_rng_state stream synchronize
        """.split()  # noqa: SIM905  # as words, these can be compared with the source
    ),
}
"""The recorded names by torch's name of the device."""


def real_names(name: str) -> frozenset[str]:
    """Returns the names in the vendor's real module: all of them for torch's own modules, else those in NAMES."""
    return NAMES[name] if name in NAMES else frozenset(dir(getattr(torch, name)))


class RecordedModule(types.ModuleType):
    """A fake module with `members`, none of which the real module lacks.

    A call that the real function would not accept raises TypeError. A name that only the real module has is an error of
    the test, because the fake should offer it.
    """

    def __init__(self, name: str, members: dict[str, Any]) -> None:
        super().__init__(f"recorded_{name}")
        self._real_names = real_names(name)
        foreign = sorted(set(members) - self._real_names)
        assert not foreign, f"the real torch.{name} has no {foreign}"
        real_module = None if name in NAMES else getattr(torch, name)
        for member, value in members.items():
            real = getattr(real_module, member, None)
            is_checked = inspect.isfunction(value) and inspect.isfunction(real)
            setattr(self, member, _checked(value, real) if is_checked else value)

    def __getattr__(self, member: str) -> Any:
        real = self.__dict__.get("_real_names", ())
        # inspect asks every module for __file__.
        assert member not in real or member.startswith("__"), (
            f"{self.__name__} must offer {member}: the real module has it"
        )
        raise AttributeError(f"{self.__name__} has no {member}")

    def remove(self, member: str) -> None:
        """Makes it a module whose real one lacks this member too, as a build of torch without the feature."""
        delattr(self, member)
        self._real_names -= {member}


def _checked(fake: Any, real: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        inspect.signature(real).bind(*args, **kwargs)
        return fake(*args, **kwargs)

    return call
