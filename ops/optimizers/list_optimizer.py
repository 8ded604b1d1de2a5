"""What the optimizers share: states, groups, checks, and one call of the op for all parameters of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from operator import is_
from typing import Any, ClassVar, TypeAlias, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from .checks import check_pairs, check_range, check_real
from .launch import Group, Launch, State
from .sharding import is_spread, local

Params: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]


class ListOptimizer(Optimizer):
    """A torch optimizer for dense parameters in float32, bfloat16 or float16, whose op takes lists of tensors.

    A subclass names its op's builder and its states, and calls the op in `_update`. Steps count per parameter, as
    Python integers in `state[p]["step"]`; parameters without a gradient are skipped.
    """

    builder: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]]
    device: ClassVar[str | None] = None
    """The type of device that its parameters must be on, if it is one."""
    not_negative: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")
    """The numbers of a group that must be 0 or more."""
    instead_of_amsgrad: ClassVar[str] = "there is no such variant of it"
    elementwise: ClassVar[bool] = True
    """Whether the rule needs nothing but an element's own numbers, so that parts of a parameter may step apart."""
    optional_states: ClassVar[tuple[str, ...]] = ()
    """States that only some parameters have, in the dtype of the others."""
    renamed_states: ClassVar[dict[str, str]] = {}
    """State names of other optimizers, whose state dicts can be loaded, and ours."""

    _plans: dict[int, tuple[list[Tensor], list[State]]]
    _known_states: list[State]
    _saved: dict[str, Any] | None
    _is_spread: bool

    def __init__(self, params: Params, defaults: Group) -> None:
        self._forget()
        _keep_steps_uncompiled()
        super().__init__(params, defaults)

    # -- for the subclass ---------------------------------------------------------------------------------------------

    def _update(self, launch: Launch) -> None:
        """Calls the op, which checks all tensors before it changes one."""
        raise NotImplementedError

    def _check_group(self, group: Group) -> None:
        """Raises ValueError for a group's numbers that the rule cannot use."""
        owner = type(self).__name__
        for name in self.not_negative:
            check_range(owner, name, group[name], 0.0)
        for i, beta in enumerate(group.get("betas", ())):
            check_range(owner, f"betas[{i}]", beta, 0.0, 1.0)
        if group.get("amsgrad"):
            raise ValueError(f"{owner}: amsgrad is True, expected False: {self.instead_of_amsgrad}")

    def _initial(self, name: str, group: Group) -> float:
        return 0.0

    # -- torch.optim.Optimizer ----------------------------------------------------------------------------------------

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Updates every parameter that has a gradient; returns what `closure` returned, which is called first.

        Raises RuntimeError, before anything is changed, for sparse gradients, parameters on a device that has no such
        op, and dtypes other than float32, bfloat16 and float16.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_groups()
        return loss

    @torch.no_grad()
    def _step_groups(self) -> None:
        for launch in list(self._launches()):
            self._run(launch)
            self._count(launch)
            # Autograd must notice when a tensor that it saved for backward was changed.
            torch.autograd.graph.increment_version(launch.params)

    def add_param_group(self, param_group: Group) -> None:
        """As torch's. Raises ValueError for complex parameters and for numbers out of range."""
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
            check_real(type(self).__name__, len(self.param_groups) - 1, self.param_groups[-1]["params"])
        except ValueError:
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, also for the state dicts of torch.optim's counterpart. States keep this optimizer's dtypes, where
        torch would cast them to the parameter's. As with torch, tensors that need no cast are shared with `state_dict`.
        """

        def keep(_: Optimizer, saved: dict[str, Any]) -> None:
            self._saved = saved

        # The last of the hooks: it sees what the user's own have made of the dict.
        handle = self.register_load_state_dict_pre_hook(keep)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
            self._forget()

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = self.__dict__.get("_saved")
        super().__setstate__(state)
        self._forget()
        _keep_steps_uncompiled()
        for group in self.param_groups:
            if "adamw_mode" in self.defaults and "decoupled_weight_decay" in group:
                group.setdefault("adamw_mode", group.pop("decoupled_weight_decay"))
            for name, value in self.defaults.items():
                group.setdefault(name, value)
            self._check_group(group)
        if saved is not None:
            self._restore(saved)

    def _restore(self, saved: dict[str, Any]) -> None:
        """Puts the states back as they were saved: torch has cast them to the parameters' dtypes, which loses bits."""
        numbers = chain.from_iterable(group["params"] for group in saved["param_groups"])
        for number, (group, param) in zip(numbers, self._members(), strict=True):
            values = saved["state"].get(number)
            if not values:
                continue
            state: State = {"step": int(values["step"])}
            for name, value in values.items():
                name = self.renamed_states.get(name, name)
                if name in self.state_names or name in self.optional_states:
                    value = self._like(param, group, value)
                if name != "step":
                    state[name] = value
            self.state[param] = state

    def _members(self) -> Iterator[tuple[Group, Tensor]]:
        for group in self.param_groups:
            for param in group["params"]:
                yield group, param

    def _like(self, param: Tensor, group: Group, value: Tensor) -> Tensor:
        """`value` in the dtype and the memory order that the kernel wants beside `param`."""
        value = value.to(device=param.device, dtype=self._state_dtype(param, group))
        if value.shape != param.shape or value.stride() == param.stride():
            return value
        return torch.empty_like(param, dtype=value.dtype).copy_(value)

    # -- states and launches ------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._plans, self._known_states, self._saved, self._is_spread = {}, [], None, False

    def _state_dtype(self, param: Tensor, group: Group) -> torch.dtype:
        low = param.dtype in (torch.bfloat16, torch.float16) and not group["fp32_optimizer_states"]
        return torch.bfloat16 if low else torch.float32

    def _launches(self) -> Iterator[Launch]:
        # Whoever replaces a state (a checkpoint, an offloader) replaces one of these objects.
        known = self._known_states
        if len(known) != len(self.state) or not all(map(is_, known, self.state.values())):
            self._plans.clear()
        for index, group in enumerate(self.param_groups):
            params, grads = [], []
            for param in group["params"]:
                grad = param.grad
                if grad is not None:
                    params.append(param)
                    grads.append(grad)
            if not params:
                continue
            planned, states = self._plans.get(index, ((), []))
            if len(planned) != len(params) or not all(map(is_, planned, params)):
                states = self._plan(index, group, params, grads)
            steps = [state["step"] for state in states]
            # Counts on a device are compared as objects: to look at their values would wait for the device.
            keys = [id(step) for step in steps] if group.get("capturable") else steps
            if keys.count(keys[0]) == len(keys):
                yield Launch(group, steps[0] + 1, params, grads, states)
                continue
            for key in dict.fromkeys(keys):
                chosen = [i for i, one in enumerate(keys) if one == key]
                yield Launch(
                    group,
                    steps[chosen[0]] + 1,
                    [params[i] for i in chosen],
                    [grads[i] for i in chosen],
                    [states[i] for i in chosen],
                )

    def _run(self, launch: Launch) -> None:
        try:
            self._update(self._own(launch))
        except RuntimeError:
            self._update(self._own(self._repaired(launch)))

    def _own(self, launch: Launch) -> Launch:
        """The launch with what this process holds of its tensors: nearly always the launch itself."""
        return local(type(self).__name__, launch, self.elementwise) if self._is_spread else launch

    def _count(self, launch: Launch) -> None:
        """Notes that a launch has been done."""
        for state in launch.states:
            state["step"] = launch.step

    def _repaired(self, launch: Launch) -> Launch:
        """A launch that the op refused, before it changed anything, with the gradients in their parameters' order of
        dimensions; or the refusal, in this optimizer's own words where it has them.
        """
        index = next(i for i, group in enumerate(self.param_groups) if group is launch.group)
        check_pairs(type(self).__name__, index, launch.group["params"], launch.params, launch.grads, self.device)
        grads = [
            grad if grad.stride() == param.stride() else torch.empty_like(param, dtype=grad.dtype).copy_(grad)
            for param, grad in zip(launch.params, launch.grads, strict=True)
        ]
        if all(map(is_, grads, launch.grads)):
            raise
        return launch._replace(grads=grads)

    def _plan(self, index: int, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[State]:
        """The states of parameters that have gradients, made where there are none; remembered for the next step."""
        check_pairs(type(self).__name__, index, group["params"], params, grads, self.device)
        states = [self._state(group, param) for param in params]
        self._is_spread = self._is_spread or any(map(is_spread, params))
        self._plans[index] = (params, states)
        self._known_states = list(self.state.values())
        return states

    def _state(self, group: Group, param: Tensor) -> State:
        state: State = self.state[param]
        state["step"] = int(state.get("step", 0))
        for name in self.state_names:
            if name not in state:
                dtype = self._state_dtype(param, group)
                state[name] = torch.full_like(param, self._initial(name, group), dtype=dtype, requires_grad=False)
        return state


@cache
def _keep_steps_uncompiled() -> None:
    """Left to torch.compile, a step would be compiled anew for every learning rate.

    Done when an optimizer is made, for which torch imports its compiler anyway: to import this module would else take a
    second more.
    """
    reason = "a step is one call of an op for each group: there is nothing in it to compile"
    ListOptimizer._step_groups = torch.compiler.disable(ListOptimizer._step_groups, reason=reason)  # type: ignore[method-assign, no-untyped-call]
