"""What every accelerator guarantees: its methods, devices, dtypes, builders and capabilities.

Each runs on its own device if there is one, else over a fake module of its vendor's. See also
test_accelerator_memory.py and test_accelerator_streams.py.
"""

from __future__ import annotations

import functools
import inspect
import json

import pytest
import torch
import torch.utils.cpp_extension  # reads torch.version when it is imported, so import it before a test changes that
from support.devices.every_accelerator import EXTERNAL, captured_graph, is_fake

from opforge.accelerator import INTERFACE_VERSION, Capabilities, Target
from opforge.errors import OpNotFoundError

NAMES = """
is_synchronized_device use_host_timers resolves_data_dependency handles_memory_backpressure device_name device
set_device current_device current_device_name device_count synchronize random set_rng_state get_rng_state
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
amp index_of
""".split()  # noqa: SIM905  # ninety names are easier to read as words than as a column of strings
PROPERTIES = {name for name in NAMES if name.endswith("Tensor")} | {"Stream", "Event"}
PREDICATES = [name for name in NAMES if name.startswith("is_") and name not in {"is_pinned"}]
PAGES = torch.empty(3 * 4096, dtype=torch.uint8)
"""Memory that contains a whole page."""
ARGUMENTS = {
    "set_device": (0,),
    "index_of": (0,),
    "set_rng_state": lambda accelerator: (accelerator.get_rng_state(),),
    "manual_seed": (1,),
    "manual_seed_all": (1,),
    "stream": (None,),
    "range_push": ("here",),
    "lazy_call": (lambda: 7,),
    "capture_to_graph": lambda accelerator: (accelerator.create_graph(),),
    "replay_graph": lambda accelerator: (captured_graph(accelerator),),
    "pin_memory": (torch.ones(2),),
    "is_pinned": (torch.ones(2),),
    "unpin_memory": (torch.ones(2),),
    "pin_empty_like": (torch.ones(2),),
    "register_host_memory": lambda accelerator: (PAGES.data_ptr() // 4096 * 4096 + 4096, 4096),
    "unregister_host_memory": lambda accelerator: (PAGES.data_ptr() // 4096 * 4096 + 4096,),
    "on_accelerator": (torch.ones(1),),
    "create_op_builder": ("NoSuchBuilder",),
    "get_op_builder": ("NoSuchBuilder",),
    "set_visible_devices_envs": ({}, [0]),
    "set_compile_backend": lambda accelerator: (accelerator.get_compile_backend(),),
}
"""Method -> its arguments, or a function of the accelerator that returns them."""
CALLED_ELSEWHERE = {"pin_empty", "load_op", "init_distributed"} | {name for name in NAMES if name.endswith("Tensor")}
"""Methods that other tests call, here or in tests/unit/accelerator/interface/test_distributed.py."""


def test_every_name_exists_and_is_documented(accelerator):
    for name in NAMES:
        member = inspect.getattr_static(type(accelerator), name)
        assert isinstance(member, (property, functools.cached_property)) == (name in PROPERTIES), name
        assert inspect.getdoc(member), f"{name} has no docstring"
        assert callable(getattr(accelerator, name)), name


def test_every_method_can_be_called(accelerator):
    for name in NAMES:
        if name not in CALLED_ELSEWHERE:
            arguments = ARGUMENTS.get(name, ())
            getattr(accelerator, name)(*(arguments(accelerator) if callable(arguments) else arguments))
    accelerator.range_pop()


def test_the_class_has_its_name_and_interface_version(accelerator):
    assert accelerator.interface_version == INTERFACE_VERSION
    assert accelerator.name and accelerator.torch_device
    assert accelerator.name in repr(accelerator)


def test_predicates_return_bools(accelerator):
    for predicate in PREDICATES:
        assert isinstance(getattr(accelerator, predicate)(), bool), predicate


def test_device_numbers_are_ints_and_names_make_devices(accelerator):
    assert type(accelerator.current_device()) is int
    assert type(accelerator.device_count()) is int and accelerator.device_count() >= 1
    for name in (accelerator.device_name(), accelerator.device_name(0), accelerator.current_device_name()):
        assert name.partition(":")[0] == accelerator.torch_device
        assert is_fake(accelerator) or torch.device(name).type == accelerator.torch_device
    with accelerator.device(0):
        assert accelerator.current_device() == 0
    accelerator.set_device(0)
    accelerator.synchronize()
    accelerator.synchronize(0)


@pytest.mark.parametrize("index", [None, 0])
def test_a_generators_state_can_be_saved_and_restored(accelerator, index):
    accelerator.manual_seed(1234)
    assert accelerator.initial_seed() == 1234
    state = accelerator.get_rng_state(index)
    assert state.dtype == torch.uint8
    generator = accelerator.default_generator(0)
    first = torch.rand(4, generator=generator, device=generator.device)
    accelerator.set_rng_state(state, index)
    assert torch.equal(torch.rand(4, generator=generator, device=generator.device), first)
    accelerator.manual_seed_all(99)
    assert accelerator.initial_seed() == 99
    assert accelerator.random() is torch.random


def test_supported_dtypes_agree_with_the_predicates(accelerator):
    dtypes = accelerator.supported_dtypes()
    assert dtypes[0] is torch.float32
    assert (torch.bfloat16 in dtypes) == accelerator.is_bf16_supported()
    assert (torch.float16 in dtypes) == accelerator.is_fp16_supported()
    assert (torch.float64 in dtypes) == accelerator.is_fp64_supported()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("BFloat16Tensor", torch.bfloat16),
        ("ByteTensor", torch.uint8),
        ("DoubleTensor", torch.float64),
        ("FloatTensor", torch.float32),
        ("HalfTensor", torch.float16),
        ("IntTensor", torch.int32),
        ("LongTensor", torch.int64),
    ],
)
def test_tensor_makers_make_their_dtype_on_the_device(accelerator, name, dtype):
    tensor = getattr(accelerator, name)([1, 2, 3])
    assert (tensor.dtype, tensor.shape) == (dtype, (3,))
    assert accelerator.on_accelerator(tensor)


def test_ranges_open_and_close_even_unmatched(accelerator):
    accelerator.range_push("outer", domain="tests", category="contract")
    accelerator.range_push("inner")
    for _ in range(3):
        accelerator.range_pop()


def test_backends_and_variables_have_names(accelerator):
    assert accelerator.lazy_call(lambda: 7) in (7, None)
    assert accelerator.communication_backend_name()
    assert isinstance(accelerator.get_compile_backend(), str)
    accelerator.set_compile_backend(accelerator.get_compile_backend())
    assert all(isinstance(name, str) and name for name in accelerator.export_envs())
    environment: dict[str, str] = {}
    accelerator.set_visible_devices_envs(environment, [0, 2])
    assert environment == dict.fromkeys(accelerator.visible_devices_envs(), "0,2")


def test_known_builders_are_returned_and_unknown_ones_are_none_or_an_error(accelerator):
    assert accelerator.op_builder_dir().startswith("opforge.builders.") or accelerator.name in EXTERNAL
    assert accelerator.create_op_builder("CPUAdamBuilder").target.device == "cpu"  # every accelerator has a host
    assert accelerator.op_builders()["CPUAdamBuilder"] == "cpu"
    assert accelerator.create_op_builder("NoSuchBuilder") is None
    assert accelerator.get_op_builder("NoSuchBuilder") is None
    with pytest.raises(OpNotFoundError, match=f"{accelerator.name!r} offers no op builder 'NoSuchBuilder'"):
        accelerator.load_op("NoSuchBuilder")


def test_the_build_command_is_setuptools(accelerator):
    command = pytest.importorskip("setuptools.command.build_ext", reason="pip install setuptools").build_ext
    assert issubclass(accelerator.build_extension(), command)


def test_only_cuda_has_a_compute_capability(accelerator):
    capabilities = accelerator.capabilities()
    assert (capabilities.compute_capability is not None) == (accelerator.target().device == "cuda")
    assert capabilities.graphs == (accelerator.name in {"cuda", "xpu", "npu", "mlu", "supa", "hpu"})


def test_target_and_capabilities_are_values_that_are_probed_once(accelerator):
    target, capabilities = accelerator.target(), accelerator.capabilities()
    assert isinstance(target, Target) and isinstance(capabilities, Capabilities)
    assert accelerator.target() is target and accelerator.capabilities() is capabilities
    assert Target.parse(str(target)) == target
    assert capabilities.device == accelerator.name and capabilities.device_count == accelerator.device_count()
    assert json.loads(json.dumps(capabilities.as_dict()))["dtypes"] == list(capabilities.dtypes)
    assert hash(capabilities) == hash(accelerator.capabilities())
