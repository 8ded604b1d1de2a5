"""Tests of every accelerator: its methods, dtypes, random numbers, builders and capabilities."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

from opforge.accelerator import INTERFACE_VERSION, Accelerator, Capabilities, Target
from opforge.builders.base import OpBuilder
from opforge.errors import OpNotFoundError
from opforge.testing.contract import error_of, skip

from .tested import AcceleratorTests

PUBLIC = tuple(name for name in dir(Accelerator) if not name.startswith("_"))
METHODS = tuple(name for name in PUBLIC if inspect.isfunction(inspect.getattr_static(Accelerator, name)))
MAKERS = {
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
}
CLASSES = (*MAKERS, "Stream", "Event")
"""Properties that callers call."""
PREDICATES = tuple(name for name in METHODS if name.startswith("is_") and name != "is_pinned")
PAGES = torch.empty(3 * 4096, dtype=torch.uint8)
"""Memory that contains a whole page."""
PAGE = PAGES.data_ptr() // 4096 * 4096 + 4096
ARGUMENTS: dict[str, Any] = {
    "set_device": (0,),
    "index_of": (0,),
    "set_rng_state": lambda accelerator: (accelerator.get_rng_state(),),
    "set_rng_state_all": lambda accelerator: (accelerator.get_rng_state_all(),),
    "manual_seed": (1,),
    "manual_seed_all": (1,),
    "stream": (None,),
    "set_stream": (None,),
    "range_push": ("here",),
    "lazy_call": (lambda: 7,),
    "capture_to_graph": lambda accelerator: (accelerator.create_graph(),),
    "pin_memory": (torch.ones(2),),
    "is_pinned": (torch.ones(2),),
    "unpin_memory": (torch.ones(2),),
    "pin_empty_like": (torch.ones(2),),
    "register_host_memory": (PAGE, 4096),
    "unregister_host_memory": (PAGE,),
    "on_accelerator": (torch.ones(1),),
    "create_op_builder": ("NoSuchBuilder",),
    "get_op_builder": ("NoSuchBuilder",),
    "set_visible_devices_envs": ({}, [0]),
    "set_compile_backend": lambda accelerator: (accelerator.get_compile_backend(),),
}
"""Method -> its arguments, or a function of the accelerator that returns them."""
AS_IN_TORCH: dict[str, Callable[[Accelerator], object]] = {
    "device_count": lambda accelerator: accelerator.device_count(),
    "current_device_index": lambda accelerator: accelerator.current_device(),
    "current_stream": lambda accelerator: accelerator.current_stream(),
    "is_available": lambda accelerator: accelerator.is_available(),
    "memory_allocated": lambda accelerator: accelerator.memory_allocated(),
    "memory_reserved": lambda accelerator: accelerator.memory_reserved(),
    "max_memory_allocated": lambda accelerator: accelerator.max_memory_allocated(),
    "max_memory_reserved": lambda accelerator: accelerator.max_memory_reserved(),
    "random.initial_seed": lambda accelerator: accelerator.initial_seed(),
    "random.get_rng_state": lambda accelerator: accelerator.get_rng_state().tolist(),
}
"""Function of torch.accelerator without effects -> the same of an accelerator. Some releases of torch lack some."""
CALLED_ELSEWHERE = {"pin_empty", "load_op", "init_distributed", "raw_stream_function", "replay_graph"}
"""Methods that other tests call, or that raise an error on some accelerators (`raw_stream_function`)."""


class InterfaceTests(AcceleratorTests):
    """The tests of the interface as a whole."""

    def test_every_name_exists_and_is_documented(self) -> None:
        for name in (*METHODS, *CLASSES):
            member = inspect.getattr_static(type(self.accelerator), name)
            is_property = isinstance(member, (property, functools.cached_property))  # noqa: TID251
            assert is_property == (name in CLASSES), (
                f"{name} is {member!r}, expected a {'property' if name in CLASSES else 'method'}, as in the interface:"
                " callers use it as such"
            )
            assert inspect.getdoc(member), f"{name} has no docstring, expected one of its own or of its base"
            assert callable(getattr(self.accelerator, name)), f"{name} cannot be called"

    def test_every_method_can_be_called(self) -> None:
        for name in METHODS:
            if name not in CALLED_ELSEWHERE:
                arguments = ARGUMENTS.get(name, ())
                getattr(self.accelerator, name)(*(arguments(self.accelerator) if callable(arguments) else arguments))
        self.accelerator.range_pop()

    def test_the_class_has_its_name_and_interface_version(self) -> None:
        accelerator = self.accelerator
        assert accelerator.interface_version == INTERFACE_VERSION, (
            f"interface_version is {accelerator.interface_version!r}, expected {INTERFACE_VERSION}: others are refused"
        )
        assert accelerator.name and accelerator.torch_device, (
            f"name is {accelerator.name!r} and torch_device {accelerator.torch_device!r}: expected both"
        )
        assert accelerator.name in repr(accelerator), f"repr() is {accelerator!r}, expected its name: logs show it"

    def test_the_reason_of_an_unavailable_device_is_a_text(self) -> None:
        reason = self.accelerator.unavailable_reason()
        assert isinstance(reason, str), (
            f"unavailable_reason() is {reason!r}, expected a text: `opforge report` shows it"
        )

    def test_predicates_return_bools(self) -> None:
        for name in PREDICATES:
            answer = getattr(self.accelerator, name)()
            assert isinstance(answer, bool), f"{name}() is {answer!r}, expected a bool: None would mean no by accident"

    def test_a_generators_state_can_be_saved_and_restored(self) -> None:
        accelerator = self.accelerator
        for index in (None, 0):
            accelerator.manual_seed(1234)
            seed = accelerator.initial_seed()
            assert seed == 1234, f"after manual_seed(1234), initial_seed() is {seed!r}"
            state = accelerator.get_rng_state(index)
            assert state.dtype == torch.uint8, (
                f"get_rng_state() is of {state.dtype}, expected torch.uint8, as torch's is"
            )
            generator = accelerator.default_generator(0)
            first = torch.rand(4, generator=generator, device=generator.device)
            accelerator.set_rng_state(state, index)
            second = torch.rand(4, generator=generator, device=generator.device)
            assert torch.equal(first, second), (
                f"after set_rng_state({index}) the numbers are {second}, expected {first} again: recomputed activations"
                " would differ"
            )
        accelerator.manual_seed_all(99)
        seed = accelerator.initial_seed()
        assert seed == 99, f"after manual_seed_all(99), initial_seed() is {seed!r}"

    def test_supported_dtypes_agree_with_the_predicates(self) -> None:
        dtypes = self.accelerator.supported_dtypes()
        assert dtypes[0] is torch.float32, f"supported_dtypes() begins with {dtypes[0]}, expected the default, float32"
        for dtype, predicate in (
            (torch.bfloat16, "is_bf16_supported"),
            (torch.float16, "is_fp16_supported"),
            (torch.float64, "is_fp64_supported"),
        ):
            answer = getattr(self.accelerator, predicate)()
            assert (dtype in dtypes) == answer, (
                f"{predicate}() is {answer} and supported_dtypes() {dtypes}: callers ask for one or the other"
            )

    def test_the_states_of_all_generators_can_be_saved_and_restored(self) -> None:
        accelerator = self.accelerator
        accelerator.manual_seed_all(7)
        states, count = accelerator.get_rng_state_all(), accelerator.device_count()
        assert len(states) == count, f"get_rng_state_all() has {len(states)} states, expected one for each of {count}"
        accelerator.manual_seed_all(8)
        accelerator.set_rng_state_all(states)
        for index, state in enumerate(states):
            restored = accelerator.get_rng_state(index)
            assert torch.equal(restored, state), f"set_rng_state_all() left another state of device {index}"

    def test_tensors_can_have_the_dtypes_that_are_computed_in(self) -> None:
        held, computed = self.accelerator.tensor_dtypes(), self.accelerator.supported_dtypes()
        missing = [dtype for dtype in (*computed, torch.int64, torch.bool) if dtype not in held]
        assert not missing, f"tensor_dtypes() lacks {missing}, which supported_dtypes() has or torch needs"

    def test_it_agrees_with_torch_accelerator_where_that_is_for_the_same_device(self) -> None:
        accelerator, theirs = self.accelerator, torch.accelerator
        current = theirs.current_accelerator(check_available=True)
        if current is None or current.type != accelerator.torch_device:
            return  # torch.accelerator is for no device, or for another one
        for name, ours in AS_IN_TORCH.items():
            try:
                expected = attrgetter(name)(theirs)()
            except (AttributeError, RuntimeError):  # this torch has none, or none for the device
                continue
            result, expected = ours(accelerator), expected.tolist() if torch.is_tensor(expected) else expected
            assert result == expected, f"{name} of torch.accelerator is {expected}, and {result} here"
        if hasattr(theirs, "get_device_capability"):
            dtypes = theirs.get_device_capability()["supported_dtypes"]
            assert accelerator.tensor_dtypes() == dtypes, "tensor_dtypes() differs from torch.accelerator's"

    def test_tensor_makers_make_their_dtype_on_the_device(self) -> None:
        for name, dtype in MAKERS.items():
            tensor = getattr(self.accelerator, name)([1, 2, 3])
            assert (tensor.dtype, tensor.shape) == (dtype, (3,)), (
                f"{name}([1, 2, 3]) is of {tensor.dtype} and shape {tuple(tensor.shape)}, expected {dtype} and (3,)"
            )
            assert self.accelerator.on_accelerator(tensor), f"{name} made a tensor on {tensor.device}"

    def test_ranges_open_and_close_even_unmatched(self) -> None:
        self.accelerator.range_push("outer", domain="tests", category="contract")
        self.accelerator.range_push("inner")
        for _ in range(3):
            self.accelerator.range_pop()

    def test_backends_and_variables_have_names(self) -> None:
        accelerator = self.accelerator
        result = accelerator.lazy_call(lambda: 7)
        assert result in (7, None), f"lazy_call() returned {result!r}, expected the result, or None if it runs later"
        backend = accelerator.communication_backend_name()
        assert backend, f"communication_backend_name() is {backend!r}, expected a name for torch.distributed"
        compiler = accelerator.get_compile_backend()
        assert isinstance(compiler, str), f"get_compile_backend() is {compiler!r}, expected a name for torch.compile"
        accelerator.set_compile_backend(compiler)
        names = accelerator.export_envs()
        assert all(isinstance(name, str) and name for name in names), (
            f"export_envs() is {names!r}, expected beginnings of names: an empty one would pass on all variables"
        )
        environment: dict[str, str] = {}
        accelerator.set_visible_devices_envs(environment, [0, 2])
        expected = dict.fromkeys(accelerator.visible_devices_envs(), "0,2")
        assert environment == expected, (
            f"set_visible_devices_envs([0, 2]) set {environment}, expected {expected}: launched processes read it"
        )

    def test_known_builders_are_returned_and_unknown_ones_are_none_or_an_error(self) -> None:
        accelerator = self.accelerator
        package = accelerator.op_builder_dir()
        assert isinstance(package, str), f"op_builder_dir() is {package!r}, expected the name of a package, or ''"
        builder = accelerator.create_op_builder("CPUAdamBuilder")
        device = getattr(getattr(builder, "target", None), "device", None)
        assert device == "cpu", (
            f"create_op_builder('CPUAdamBuilder') is {builder!r}, expected the host's op: every accelerator has a host"
        )
        assert accelerator.op_builders()["CPUAdamBuilder"] == "cpu", "op_builders() does not list the host's ops"
        problems = accelerator.op_builder_problems()
        assert problems == {}, f"builders of the accelerator cannot be used: {problems}"
        for name in ("create_op_builder", "get_op_builder"):
            result = getattr(accelerator, name)("NoSuchBuilder")
            assert result is None, f"{name}('NoSuchBuilder') is {result!r}, expected None: callers test for it"
        error = error_of(OpNotFoundError, lambda: accelerator.load_op("NoSuchBuilder"), "there is no such op")
        assert f"{accelerator.name!r} offers no op builder 'NoSuchBuilder'" in str(error), f"load_op() says {error}"

    def test_its_own_builders_are_for_its_device(self) -> None:
        for name, device in self.accelerator.op_builders().items():
            if device == self.accelerator.name:
                builder = self.accelerator.create_op_builder(name)
                if isinstance(builder, OpBuilder):
                    kind = builder.target.device
                    assert kind in builder.devices, f"{name} is for {builder.devices}, and its target {builder.target}"

    def test_the_build_command_is_setuptools(self) -> None:
        try:
            from setuptools.command.build_ext import build_ext
        except ImportError:
            skip("setuptools is not installed: pip install setuptools")
        command = self.accelerator.build_extension()
        assert issubclass(command, build_ext), f"build_extension() is {command!r}, expected a subclass of build_ext"

    def test_only_cuda_has_a_compute_capability(self) -> None:
        capability, target = self.accelerator.capabilities().compute_capability, self.accelerator.target()
        assert (capability is not None) == (target.device == "cuda"), (
            f"the target is {target} and compute_capability {capability!r}: code for CUDA is chosen by it"
        )

    def test_target_and_capabilities_are_values_that_are_probed_once(self) -> None:
        accelerator = self.accelerator
        target, capabilities = accelerator.target(), accelerator.capabilities()
        assert isinstance(target, Target), f"target() is {target!r}, expected an opforge.accelerator.Target"
        assert isinstance(capabilities, Capabilities), f"capabilities() is {capabilities!r}, expected Capabilities"
        assert accelerator.target() is target, "target() is another object at the second call: each load would probe"
        assert accelerator.capabilities() is capabilities, "capabilities() is another object at the second call"
        parsed = Target.parse(str(target))
        assert parsed == target, f"the target {target} is parsed as {parsed}: build-ops --target could not name it"
        assert capabilities.device == accelerator.name, (
            f"capabilities().device is {capabilities.device!r}, expected {accelerator.name!r}"
        )
        count = accelerator.device_count()
        assert capabilities.device_count == count, (
            f"capabilities().device_count is {capabilities.device_count}, expected device_count(), {count}"
        )
        document = json.loads(json.dumps(capabilities.as_dict()))
        assert document["dtypes"] == list(capabilities.dtypes), (
            f"as_dict() has the dtypes {document['dtypes']}, expected {capabilities.dtypes}: `opforge report` prints it"
        )
        assert hash(capabilities) == hash(accelerator.capabilities()), "equal capabilities have different hashes"
