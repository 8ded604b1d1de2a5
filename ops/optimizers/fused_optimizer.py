"""The base class of the fused optimizers: ops per device, master weights, steps counted on the device."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opforge.ops.host_op import host_op

from .launch import Group, Launch, State
from .list_optimizer import ListOptimizer, Params

LOW_PRECISION = (torch.bfloat16, torch.float16)


@functools.cache
def load_op(builder: str, device: str) -> Any:
    """Returns the functions of an op for a device type, the accelerator's in use or the CPU's. Builds it if necessary.

    Raises:
        RuntimeError: the accelerator in use is for another device.
        OpNotFoundError: the accelerator in use has no such op.
    """
    if device == "cpu":
        return host_op(builder)
    from opforge.accelerator.select import get_accelerator

    accelerator = get_accelerator()
    if accelerator.torch_device != device:
        raise RuntimeError(
            f"the parameters are on {device}, and the accelerator in use is {accelerator.name!r}, for "
            f"{accelerator.torch_device}: choose that of {device} with opforge.set_accelerator, or move the model"
        )
    return accelerator.load_op(builder)


class Part(NamedTuple):
    """The tensors of one call: the parameters of a launch on one device that all have copies, or all have none."""

    device: torch.device
    launch: Launch
    params: list[Tensor]
    """The tensors that the rule updates: the parameters, or their master weights."""
    copies: list[Tensor]
    """Further tensors that receive the new values: the parameters if there are master weights, otherwise empty."""
    states: dict[str, list[Tensor]]


class FusedOptimizer(ListOptimizer):
    """A torch optimizer whose step is one call of a kernel for all parameters of a group on a device.

    Every subclass has these options of a group:

    - `capturable` counts steps in a tensor on the device, so that a step can be captured in a CUDA graph. `lr` may be a
      tensor then.
    - `master_weights` keeps a float32 copy of bfloat16 and float16 parameters, as state "master", and writes both in
      one pass.
    - `fp32_optimizer_states=False` keeps the other states of bfloat16 and float16 parameters in bfloat16.
    """

    optional_states = ("master",)
    set_grad_none = True

    def __init__(self, params: Params, defaults: Group, set_grad_none: bool) -> None:
        self.set_grad_none = set_grad_none
        super().__init__(params, defaults)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Resets the gradients as torch does; `set_to_none` defaults to the constructor's `set_grad_none`."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state dict as torch does, with one count for each parameter.

        Here parameters share a count. torch's optimizers would increase a shared one once for each parameter.
        """
        state_dict = super().state_dict()
        for key, state in state_dict["state"].items():
            if isinstance(state.get("step"), Tensor):
                state_dict["state"][key] = {**state, "step": state["step"].clone()}
        return state_dict

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "set_grad_none": self.set_grad_none}

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Read by torch.amp.GradScaler. If steps are counted on the device, an overflow is handled without a wait."""
        return all(group["capturable"] for group in self.param_groups)

    # -- for the subclass ---------------------------------------------------------------------------------------------

    def _call(self, op: Any, launch: Launch, part: Part, numbers: dict[str, Any]) -> None:
        """Calls the op for the tensors of `part`, with the gradients of `launch`.

        `numbers` holds lr, and the tensors on the device if there are any: lr_tensor, step_tensor, grad_scale.
        """
        raise NotImplementedError

    # -- ListOptimizer ------------------------------------------------------------------------------------------------

    def _drop_plans(self) -> None:
        super()._drop_plans()
        self._flags: dict[torch.device, Tensor] = {}

    def _counts_on_device(self, group: Group) -> bool:
        return bool(group["capturable"])

    def _run(self, launch: Launch) -> None:
        # Each part is tried again by itself: the parts before it have been updated already.
        for device, part in self._split(launch):
            try:
                self._update_part(device, part)
            except RuntimeError:
                self._update_part(device, self._with_strides_of_params(part))

    def _update_part(self, device: torch.device, launch: Launch) -> None:
        part = self._part(device, self._local(launch))
        lr, capturable = launch.group["lr"], launch.group["capturable"]
        numbers: dict[str, Any] = {"lr": 0.0 if capturable and isinstance(lr, Tensor) else float(lr)}
        if capturable:
            numbers["step_tensor"] = launch.step.to(device)
            numbers["lr_tensor"] = self._number(lr, device) if isinstance(lr, Tensor) else None
            numbers["grad_scale"] = self._number(getattr(self, "grad_scale", None), device)
        self._call(load_op(self.builder, device.type), part.launch, part, numbers)

    @staticmethod
    def _number(value: Tensor | None, device: torch.device) -> Tensor | None:
        return None if value is None else value.to(device=device, dtype=torch.float32)

    def _noop_flag(self, device: torch.device) -> Tensor:
        """Returns a number that stops the update unless it is zero: the GradScaler's own flag while it steps."""
        if (found_inf := getattr(self, "found_inf", None)) is not None:
            return self._number(found_inf, device)  # type: ignore[return-value]
        if device not in self._flags:
            self._flags[device] = torch.zeros(1, dtype=torch.int32, device=device)
        return self._flags[device]

    def _count(self, launch: Launch) -> None:
        if not launch.group["capturable"]:
            super()._count(launch)
            return
        # All parameters of the launch share one tensor.
        count: Tensor = launch.states[0]["step"]
        count.add_(self._noop_flag(count.device).reshape(()) == 0)

    def _split(self, launch: Launch) -> list[tuple[torch.device, Launch]]:
        """Returns the launch as parts that can be one call each, with their devices."""
        # Not kept for the next step: an offloader, for example, may replace a state.
        params, grads, states = launch.params, launch.grads, launch.states
        devices = [param.device for param in params]
        has_master = ["master" in state for state in states]
        # Usually there is one part. This check takes a quarter of the time that grouping takes.
        if devices.count(devices[0]) == len(devices) and has_master.count(has_master[0]) == len(has_master):
            return [(devices[0], launch)]
        kinds: dict[tuple[torch.device, bool], list[int]] = {}
        for i, kind in enumerate(zip(devices, has_master, strict=True)):
            kinds.setdefault(kind, []).append(i)
        return [
            (
                device,
                launch._replace(
                    params=[params[i] for i in indices],
                    grads=[grads[i] for i in indices],
                    states=[states[i] for i in indices],
                ),
            )
            for (device, _), indices in kinds.items()
        ]

    def _part(self, device: torch.device, launch: Launch) -> Part:
        """Returns the tensors of a call as a Part. The launch is on one device, and all or none have master weights."""
        states = launch.states
        by_name = {name: [state[name] for state in states] for name in self.state_names}
        if "master" in states[0]:
            return Part(device, launch, [state["master"] for state in states], launch.params, by_name)
        return Part(device, launch, launch.params, [], by_name)

    def _plan(self, index: int, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[State]:
        for device in dict.fromkeys(param.device.type for param in params):
            load_op(self.builder, device)  # raises if there is none: before the parameters on other devices are updated
        states = super()._plan(index, group, params, grads)
        if group["capturable"]:
            # Parameters with the same count share one tensor, since they are updated together.
            shared: dict[int, Tensor] = {}
            for param, state in zip(params, states, strict=True):
                count = int(state["step"])
                if count not in shared:
                    shared[count] = torch.tensor(float(count), dtype=torch.float32, device=param.device)
                state["step"] = shared[count]
        return states

    def _state(self, group: Group, param: Tensor) -> State:
        state = super()._state(group, param)
        if group["master_weights"] and param.dtype in LOW_PRECISION and "master" not in state:
            state["master"] = param.detach().to(torch.float32, memory_format=torch.preserve_format, copy=True)
        return state
