"""What the fused optimizers share: the op of the tensors' own device, master weights, steps counted on the device."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .launch import Group, Launch, State
from .list_optimizer import ListOptimizer, Params

LOW = (torch.bfloat16, torch.float16)


@functools.cache
def load_op(builder: str, device: str) -> Any:
    """The functions of an op for a device type, built first if need be: the accelerator's in use, or the CPU's.

    Raises RuntimeError where the accelerator in use is for another device, OpNotFoundError where it has no such op.
    """
    if device == "cpu":
        from .cpu_optimizer import load_op as load_cpu_op

        return load_cpu_op(builder)
    from opforge.accelerator.select import get_accelerator

    accelerator = get_accelerator()
    if accelerator.torch_device != device:
        raise RuntimeError(
            f"the parameters are on {device}, and the accelerator in use is {accelerator.name!r}, for "
            f"{accelerator.torch_device}: choose the other one with opforge.set_accelerator, or move the model"
        )
    return accelerator.load_op(builder)


class Part(NamedTuple):
    """The tensors of one call: those of a launch that are on one device, and have copies or have none."""

    device: torch.device
    launch: Launch
    params: list[Tensor]
    """What the rule updates: the master weights where the parameters are their copies."""
    copies: list[Tensor]
    states: dict[str, list[Tensor]]


class FusedOptimizer(ListOptimizer):
    """A torch optimizer whose step is one call of a kernel for all parameters of a group on a device.

    Options of a group that all have: `capturable` counts steps in a tensor on the device, and takes `lr` as a tensor
    too, so that the step can be captured in a CUDA graph; `master_weights` keeps bfloat16 and float16 parameters in
    float32, as state "master", and writes both in one pass; `fp32_optimizer_states` as False keeps those parameters'
    states in bfloat16.
    """

    optional_states = ("master",)

    def __init__(self, params: Params, defaults: Group, set_grad_none: bool) -> None:
        self.set_grad_none = set_grad_none
        super().__init__(params, defaults)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """As torch's; `set_grad_none` of the constructor holds where nothing is given."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """As torch's. Counts are given one by one: torch's optimizers would count a shared one for each parameter."""
        saved = super().state_dict()
        for key, state in saved["state"].items():
            if isinstance(state.get("step"), Tensor):
                saved["state"][key] = {**state, "step": state["step"].clone()}
        return saved

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """torch.amp.GradScaler asks this. Where steps are counted on the device, an overflow costs no wait for it."""
        return all(group["capturable"] for group in self.param_groups)

    # -- for the subclass ---------------------------------------------------------------------------------------------

    def _call(self, op: Any, launch: Launch, part: Part, numbers: dict[str, Any]) -> None:
        """Calls the op for a launch of this part alone.

        `numbers` are lr, and what lies on the device: lr_tensor, step_tensor, grad_scale.
        """
        raise NotImplementedError

    # -- ListOptimizer ------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        super()._forget()
        self._flags: dict[torch.device, Tensor] = {}
        self.__dict__.setdefault("set_grad_none", True)

    def _run(self, launch: Launch) -> None:
        # Each part is repaired by itself: those before it have been updated.
        for device, own in self._by_place(launch):
            try:
                self._update_part(device, own)
            except RuntimeError:
                self._update_part(device, self._repaired(own))

    def _update_part(self, device: torch.device, launch: Launch) -> None:
        part = self._part(device, self._own(launch))
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
        """Not zero: nothing is to be updated. A GradScaler's own flag while it steps."""
        found = getattr(self, "found_inf", None)
        if found is not None:
            return self._number(found, device)  # type: ignore[return-value]
        if device not in self._flags:
            self._flags[device] = torch.zeros(1, dtype=torch.int32, device=device)
        return self._flags[device]

    def _count(self, launch: Launch) -> None:
        if not launch.group["capturable"]:
            super()._count(launch)
            return
        # One tensor for all of them, counted once.
        count: Tensor = launch.states[0]["step"]
        count.add_(self._noop_flag(count.device).reshape(()) == 0)

    def _by_place(self, launch: Launch) -> list[tuple[torch.device, Launch]]:
        """The launch cut into those of which each can be one call, with their devices."""
        # Anew each step: a state may have been replaced, by an offloader say.
        params, grads, states = launch.params, launch.grads, launch.states
        devices = [param.device for param in params]
        copied = ["master" in state for state in states]
        # Nearly always one, which is seen in a quarter of the time that sorting takes.
        if devices.count(devices[0]) == len(devices) and copied.count(copied[0]) == len(copied):
            return [(devices[0], launch)]
        kinds: dict[tuple[torch.device, bool], list[int]] = {}
        for i, kind in enumerate(zip(devices, copied, strict=True)):
            kinds.setdefault(kind, []).append(i)
        return [
            (
                device,
                launch._replace(
                    params=[params[i] for i in chosen],
                    grads=[grads[i] for i in chosen],
                    states=[states[i] for i in chosen],
                ),
            )
            for (device, _), chosen in kinds.items()
        ]

    def _part(self, device: torch.device, launch: Launch) -> Part:
        """The part that is a whole launch: on one device, and with copies or without."""
        states = launch.states
        named = {name: [state[name] for state in states] for name in self.state_names}
        if "master" in states[0]:
            return Part(device, launch, [state["master"] for state in states], launch.params, named)
        return Part(device, launch, launch.params, [], named)

    def _plan(self, index: int, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[State]:
        states = super()._plan(index, group, params, grads)
        if group["capturable"]:
            # Parameters that will step together share one count; others keep theirs.
            shared: dict[int, Tensor] = {}
            for param, state in zip(params, states, strict=True):
                count = int(state["step"])
                if count not in shared:
                    shared[count] = torch.tensor(float(count), device=param.device)
                state["step"] = shared[count]
        return states

    def _state(self, group: Group, param: Tensor) -> State:
        state = super()._state(group, param)
        if group["master_weights"] and param.dtype in LOW and "master" not in state:
            state["master"] = param.detach().to(torch.float32, memory_format=torch.preserve_format, copy=True)
        return state
