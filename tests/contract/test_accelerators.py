"""What every accelerator promises, asked of each of our own: the real one where its device is here, and elsewhere one
over a recorded stand-in for its maker's module (tests/support/devices/vendor_modules.py).
"""

from __future__ import annotations

import importlib.metadata
import inspect
import json

import pytest
import torch
import torch.utils.cpp_extension  # reads torch.version at import, so before a test changes that
from support.devices import vendor_modules

from opforge.accelerator import INTERFACE_VERSION, Accelerator, Capabilities, Target, select
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
""".split()  # noqa: SIM905  # sixty names read better as words than as a column of strings
PROPERTIES = {name for name in NAMES if name.endswith("Tensor")} | {"Stream", "Event"}
BYTES = [
    "memory_allocated",
    "max_memory_allocated",
    "memory_cached",
    "max_memory_cached",
    "memory_reserved",
    "max_memory_reserved",
    "total_memory",
    "available_memory",
]
RESETS = "reset_max_memory_allocated reset_max_memory_cached reset_peak_memory_stats".split()  # noqa: SIM905
QUESTIONS = [name for name in NAMES if name.startswith("is_") and name not in {"is_pinned"}]


ARGUMENTS = {
    "set_device": (0,),
    "set_rng_state": lambda accelerator: (accelerator.get_rng_state(),),
    "manual_seed": (1,),
    "manual_seed_all": (1,),
    "stream": (None,),
    "range_push": ("here",),
    "lazy_call": (lambda: 7,),
    "capture_to_graph": lambda accelerator: (accelerator.create_graph(),),
    "replay_graph": lambda accelerator: (captured(accelerator),),
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
ELSEWHERE = {"pin_empty", "load_op", "init_distributed"} | {name for name in NAMES if name.endswith("Tensor")}
"""Called by tests of their own, here or in test_accelerator_distributed.py."""
PAGES = torch.empty(3 * 4096, dtype=torch.uint8)


ADDED = sorted({point.name for point in importlib.metadata.entry_points(group=select.GROUP)})
"""Those of packages that are installed beside opforge keep the same promises, on their own device."""


@pytest.fixture(params=[*select.BUILT_IN, *ADDED])
def accelerator(request, monkeypatch, tmp_path):
    for variable in ("LOCAL_RANK", "LOCAL_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    if request.param in ADDED:
        made = select.make_accelerator(request.param, "the contract")
        if not made.is_available():
            pytest.skip(f"{request.param}: {made.unavailable_reason()}")
        made.recorded = False
        return made
    made = vendor_modules.accelerator_class(request.param)()
    if made.is_available():
        made.recorded = False
        return made
    made, _ = vendor_modules.install(request.param, monkeypatch, tmp_path)
    assert made.is_available(), made.unavailable_reason()
    made.recorded = True
    return made


def device(accelerator: Accelerator) -> torch.device:
    return torch.device("meta" if accelerator.recorded else accelerator.current_device_name())


def captured(accelerator: Accelerator) -> object:
    graph = accelerator.create_graph()
    with accelerator.capture_to_graph(graph):
        torch.ones(2, device=device(accelerator)) * 2
    return graph


def test_every_name_is_there_and_documented(accelerator):
    for name in NAMES:
        entry = inspect.getattr_static(type(accelerator), name)
        assert isinstance(entry, property) == (name in PROPERTIES), name
        assert inspect.getdoc(entry), f"{name} has no docstring"
        assert callable(getattr(accelerator, name)), name


def test_every_method_can_be_called(accelerator):
    for name in NAMES:
        if name not in ELSEWHERE:
            given = ARGUMENTS.get(name, ())
            getattr(accelerator, name)(*(given(accelerator) if callable(given) else given))
    accelerator.range_pop()


def test_the_class_states_what_it_is(accelerator):
    assert accelerator.interface_version == INTERFACE_VERSION
    assert accelerator.name and accelerator.torch_device
    assert accelerator.name in repr(accelerator)


def test_a_question_is_answered_true_or_false(accelerator):
    for question in QUESTIONS:
        assert isinstance(getattr(accelerator, question)(), bool), question


def test_device_numbers_are_ints_and_names_make_devices(accelerator):
    assert type(accelerator.current_device()) is int
    assert type(accelerator.device_count()) is int and accelerator.device_count() >= 1
    for name in (accelerator.device_name(), accelerator.device_name(0), accelerator.current_device_name()):
        assert name.partition(":")[0] == accelerator.torch_device
        assert accelerator.recorded or torch.device(name).type == accelerator.torch_device
    with accelerator.device(0):
        assert accelerator.current_device() == 0
    accelerator.set_device(0)
    accelerator.synchronize()
    accelerator.synchronize(0)


@pytest.mark.parametrize("index", [None, 0])
def test_sizes_are_whole_bytes(accelerator, index):
    for name in BYTES:
        size = getattr(accelerator, name)(index)
        assert type(size) is int and size >= 0, name


def test_memory_figures_agree(accelerator):
    free, total = accelerator.mem_get_info()
    assert type(free) is int and type(total) is int and 0 <= free <= total == accelerator.total_memory()
    stats = accelerator.memory_stats()
    assert type(stats["allocated_bytes.all.current"]) is int
    assert stats["allocated_bytes.all.peak"] >= stats["allocated_bytes.all.current"]
    assert accelerator.max_memory_allocated() >= 0
    accelerator.empty_cache()


@pytest.mark.parametrize("index", [None, 0])
def test_peaks_can_be_reset(accelerator, index):
    for name in RESETS:
        assert getattr(accelerator, name)(index) is None, name


@pytest.mark.parametrize("index", [None, 0])
def test_a_generators_state_makes_a_round_trip(accelerator, index):
    accelerator.manual_seed(1234)
    assert accelerator.initial_seed() == 1234
    before = accelerator.get_rng_state(index)
    assert before.dtype == torch.uint8
    generator = accelerator.default_generator(0)
    place = generator.device
    first = torch.rand(4, generator=generator, device=place)
    accelerator.set_rng_state(before, index)
    assert torch.equal(torch.rand(4, generator=generator, device=place), first)
    accelerator.manual_seed_all(99)
    assert accelerator.initial_seed() == 99
    assert accelerator.random() is torch.random


def test_streams_are_entered_waited_for_and_left(accelerator):
    default = accelerator.default_stream()
    assert default is not None and accelerator.current_stream(0) is not None
    stream = accelerator.Stream()
    with accelerator.stream(stream):
        assert accelerator.current_stream() == stream
    assert accelerator.current_stream() != stream
    with accelerator.stream(None):
        pass
    stream.wait_stream(accelerator.current_stream())
    stream.synchronize()
    assert stream.query() is True
    with stream:
        assert accelerator.current_stream() == stream


def test_events_are_recorded_reached_and_timed(accelerator):
    start, end = accelerator.Event(enable_timing=True), accelerator.Event(enable_timing=True)
    stream = accelerator.current_stream()
    start.record(stream)
    torch.ones(1000, device=device(accelerator)).sum()
    end.record()
    end.wait()
    stream.wait_event(end)
    end.synchronize()
    assert end.query() is True
    assert 0 <= start.elapsed_time(end) < 60_000
    assert stream.record_event() is not None


def test_graphs_are_captured_and_replayed(accelerator):
    graph = accelerator.create_graph()
    assert graph is not None
    given = torch.ones(3, device=device(accelerator))
    assert accelerator.is_current_stream_capturing() is False
    with accelerator.capture_to_graph(graph, pool=None, stream=None):
        doubled = given * 2
        assert accelerator.is_current_stream_capturing() is True
    given.fill_(5)
    accelerator.replay_graph(graph)
    accelerator.synchronize()
    if not doubled.is_meta:
        assert doubled.tolist() == [10.0, 10.0, 10.0]


def test_dtypes_agree_with_the_questions(accelerator):
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
    made = getattr(accelerator, name)([1, 2, 3])
    assert (made.dtype, made.shape) == (dtype, (3,))
    assert accelerator.on_accelerator(made)


def test_pinned_memory_makes_a_round_trip(accelerator):
    tensor = torch.arange(6.0).reshape(2, 3)
    pinned = accelerator.pin_memory(tensor)
    assert torch.equal(pinned, tensor)
    assert type(accelerator.is_pinned(pinned)) is bool
    accelerator.unpin_memory(pinned)
    assert accelerator.pin_memory(tensor, make_copy=False).shape == (2, 3)
    assert accelerator.pin_memory(tensor, make_copy=False, match_shape=False).shape == (6,)
    assert accelerator.pin_empty(2, 3, dtype=torch.int8).shape == (2, 3)
    assert accelerator.pin_empty((4,), dtype=torch.int8).dtype is torch.int8
    assert accelerator.pin_empty(torch.Size([1, 2]), dtype=torch.int8).shape == (1, 2)
    like = accelerator.pin_empty_like(tensor, dtype=torch.float64)
    assert (like.shape, like.dtype) == (tensor.shape, torch.float64)


def test_host_memory_is_registered_or_left_alone(accelerator):
    tensor = torch.empty(1 << 16, dtype=torch.uint8)
    alignment = accelerator.pin_memory_alignment()
    assert type(alignment) is int and alignment >= 1
    address = -(-tensor.data_ptr() // alignment) * alignment
    assert type(accelerator.register_host_memory(address, 1 << 12)) is bool
    assert accelerator.unregister_host_memory(address) is None


def test_ranges_open_and_close_even_unmatched(accelerator):
    accelerator.range_push("outer", domain="tests", category="contract")
    accelerator.range_push("inner")
    for _ in range(3):
        accelerator.range_pop()


def test_surroundings_are_named(accelerator):
    assert accelerator.lazy_call(lambda: 7) in (7, None)
    assert accelerator.communication_backend_name()
    assert isinstance(accelerator.get_compile_backend(), str)
    accelerator.set_compile_backend(accelerator.get_compile_backend())
    assert all(isinstance(name, str) and name for name in accelerator.export_envs())
    environment: dict[str, str] = {}
    accelerator.set_visible_devices_envs(environment, [0, 2])
    assert environment == dict.fromkeys(accelerator.visible_devices_envs(), "0,2")


def test_builders_are_found_or_missed_as_promised(accelerator):
    assert accelerator.op_builder_dir().startswith("opforge.builders.") or accelerator.name in ADDED
    assert accelerator.create_op_builder("CPUAdamBuilder").target.device == "cpu"  # a host is everywhere
    assert accelerator.op_builders()["CPUAdamBuilder"] == "cpu"
    assert accelerator.create_op_builder("NoSuchBuilder") is None
    assert accelerator.get_op_builder("NoSuchBuilder") is None
    with pytest.raises(OpNotFoundError, match=f"{accelerator.name!r} offers no op builder 'NoSuchBuilder'"):
        accelerator.load_op("NoSuchBuilder")


def test_the_build_command_is_a_setuptools_one(accelerator):
    command = pytest.importorskip("setuptools.command.build_ext", reason="pip install setuptools").build_ext
    assert issubclass(accelerator.build_extension(), command)


def test_only_cuda_has_a_compute_capability(accelerator):
    found = accelerator.capabilities()
    assert (found.compute_capability is not None) == (accelerator.target().device == "cuda")
    assert found.graphs == (accelerator.name in {"cuda", "xpu", "npu", "mlu", "supa", "hpu"})


def test_target_and_capabilities_are_values_found_once(accelerator):
    target, found = accelerator.target(), accelerator.capabilities()
    assert isinstance(target, Target) and isinstance(found, Capabilities)
    assert accelerator.target() is target and accelerator.capabilities() is found
    assert Target.parse(str(target)) == target
    assert found.device == accelerator.name and found.device_count == accelerator.device_count()
    assert json.loads(json.dumps(found.as_dict()))["dtypes"] == list(found.dtypes)
    assert hash(found) == hash(accelerator.capabilities())
