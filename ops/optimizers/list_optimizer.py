"""The base of the optimizers: states, groups, checks, and one call of the op for all parameters of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from operator import is_
from typing import Any, ClassVar, TypeAlias, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from .checks import check_betas, check_pairs, check_range, check_real, check_states
from .hooks import wrapped_if_observed
from .launch import Group, Launch, State
from .sharding import check_whole, is_sharded, local_launch

Params: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]


class ListOptimizer(Optimizer):
    """A torch optimizer for dense parameters in float32, bfloat16 or float16, whose op takes lists of tensors.

    A subclass names its op's builder and its states, and calls the op in `_update`. Steps are counted per parameter, as
    Python integers in `state[p]["step"]`. Parameters without a gradient are skipped.
    """

    builder: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]]
    device: ClassVar[str | None] = None
    """The type of device that the parameters must be on; None if any will do."""
    non_negative: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")
    """The options of a group that must be 0 or more."""
    amsgrad_advice: ClassVar[str] = "this optimizer has no such variant"
    """The end of the error message for amsgrad=True."""
    elementwise: ClassVar[bool] = True
    """Whether the rule uses the numbers of one element only, so that a process can update its part of a parameter."""
    optional_states: ClassVar[tuple[str, ...]] = ()
    """States that only some parameters have, in float32 always."""
    renamed_states: ClassVar[dict[str, str]] = {}
    """State name in the state dicts of other optimizers -> the name here."""

    _plans: dict[int, tuple[list[Tensor], list[State]]]
    """Group's index -> the parameters that had gradients in the last step, and their states."""
    _planned_states: list[State]
    """All states as the plans were made from them."""
    _loaded: dict[str, Any] | None
    """The state dict that is being loaded, as the pre-hooks left it."""
    _has_shards: bool
    """Whether a parameter is a DTensor."""

    def __init__(self, params: Params, defaults: Group) -> None:
        self._drop_plans()
        _keep_steps_uncompiled()
        super().__init__(params, defaults)

    # -- for the subclass ---------------------------------------------------------------------------------------------

    def _update(self, launch: Launch) -> None:
        """Calls the op, which checks all tensors before it changes one."""
        raise NotImplementedError

    def _check_group(self, group: Group) -> None:
        """Raises ValueError if the rule cannot use an option of the group."""
        owner = type(self).__name__
        for name in self.non_negative:
            check_range(owner, name, group[name], 0.0)
        if "betas" in group:
            check_betas(owner, group["betas"])
        if group.get("amsgrad"):
            raise ValueError(f"{owner}: amsgrad is True, expected False: {self.amsgrad_advice}")

    def _initial_value(self, name: str, group: Group) -> float:
        """Returns the number that a new state of this name is filled with."""
        return 0.0

    def _counts_on_device(self, group: Group) -> bool:
        """Returns whether the steps of a group are counted in tensors."""
        return False

    # -- torch.optim.Optimizer ----------------------------------------------------------------------------------------

    profile_hook_step = staticmethod(wrapped_if_observed)
    """The wrapper that torch puts around `step` when the first optimizer of a class is created."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Updates every parameter that has a gradient. Calls `closure` first, and returns its result.

        Raises:
            RuntimeError: a gradient is sparse, a parameter is on a device that has no such op, or a dtype is not
                float32, bfloat16 or float16. Nothing has been changed then, unless a gradient became such a one after
                the first step: the groups before it are updated then, but not its own.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_groups()
        return loss

    def _step_groups(self) -> None:
        is_enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(False)  # torch.no_grad() takes a microsecond more
        try:
            for launch in list(self._launches()):
                self._run(launch)
                self._count(launch)
                # Without this, autograd would not notice that a tensor which it saved for backward was changed.
                torch.autograd.graph.increment_version(launch.params)
        finally:
            torch.set_grad_enabled(is_enabled)

    def add_param_group(self, param_group: Group) -> None:
        """Adds a group as torch does. Raises ValueError for complex parameters and for options out of range."""
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
            check_real(type(self).__name__, len(self.param_groups) - 1, self.param_groups[-1]["params"])
        except ValueError:
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state dict of this class, or of its counterpart in torch.optim, DeepSpeed or apex.

        States get this optimizer's dtypes; torch would cast them to the parameter's. As with torch, tensors that need
        no cast are shared with `state_dict`. The numbers of the states may be strings.
        """

        def keep(_: Optimizer, loaded: dict[str, Any]) -> dict[str, Any]:
            self._loaded = _numbered(loaded)
            return self._loaded

        # Registered last, so that it sees the dict as the user's own hooks changed it.
        handle = self.register_load_state_dict_pre_hook(keep)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
            self._drop_plans()

    def __setstate__(self, state: dict[str, Any]) -> None:
        loaded = self.__dict__.get("_loaded")
        defaults = state.get("defaults") or self.defaults
        for group in state["param_groups"]:  # checked before anything of this optimizer is replaced
            group.pop("step", None)  # see _counts
            if "adamw_mode" in defaults and "decoupled_weight_decay" in group:
                group.setdefault("adamw_mode", group.pop("decoupled_weight_decay"))
            for name, value in defaults.items():
                group.setdefault(name, value)
            self._check_group(group)
        super().__setstate__(state)
        self._drop_plans()
        _keep_steps_uncompiled()
        if loaded is not None:
            self._restore_states(loaded)

    def _restore_states(self, loaded: dict[str, Any]) -> None:
        """Takes the states from `loaded` again: torch cast them to the parameters' dtypes, which loses bits."""
        groups = loaded["param_groups"]
        counts = chain.from_iterable(self._counts(group, loaded["state"]) for group in groups)
        numbers = chain.from_iterable(group["params"] for group in groups)
        for number, count, (group, param) in zip(numbers, counts, self._members(), strict=True):
            values = loaded["state"].get(number)
            if not values:
                continue
            state: State = {"step": count}
            for name, value in values.items():
                name = self.renamed_states.get(name, name)
                if name in self.state_names or name in self.optional_states:
                    dtype = torch.float32 if name in self.optional_states else self._state_dtype(param, group)
                    value = value.to(device=param.device, dtype=dtype)
                    value = _in_order_of(param, value) if value.shape == param.shape else value
                if name != "step":
                    state[name] = value
            self.state[param] = state

    @staticmethod
    def _counts(group: Group, states: dict[int, State]) -> list[int]:
        """Returns the number of steps of each parameter of a loaded group.

        One with a count of its own is of DeepSpeed's or apex's fused optimizers, which have one for all parameters: in
        the group (apex) or in the states of the last ones alone, while the others have 0 (DeepSpeed).
        """
        own = [states.get(number) or {"step": 0} for number in group["params"]]
        if "step" not in group:
            return [int(state["step"]) for state in own]
        return [max(0, int(group["step"]), *(int(state.get("step", 0)) for state in own))] * len(own)

    def _members(self) -> Iterator[tuple[Group, Tensor]]:
        for group in self.param_groups:
            for param in group["params"]:
                yield group, param

    # -- states and launches ------------------------------------------------------------------------------------------

    def _drop_plans(self) -> None:
        self._plans, self._planned_states, self._loaded, self._has_shards = {}, [], None, False

    def _state_dtype(self, param: Tensor, group: Group) -> torch.dtype:
        low = param.dtype in (torch.bfloat16, torch.float16) and not group["fp32_optimizer_states"]
        return torch.bfloat16 if low else torch.float32

    def _launches(self) -> Iterator[Launch]:
        # Code that replaces a state, such as a checkpoint or an offloader, replaces one of these objects.
        planned_states = self._planned_states
        if len(planned_states) != len(self.state) or not all(map(is_, planned_states, self.state.values())):
            self._plans.clear()
        for index, group in enumerate(self.param_groups):
            params, grads = [], []
            for param in group["params"]:
                if (grad := param.grad) is not None:
                    params.append(param)
                    grads.append(grad)
            if not params:
                continue
            planned, states = self._plans.get(index, ((), []))
            is_planned = len(planned) == len(params) and all(map(is_, planned, params))
            if not is_planned or isinstance(states[0]["step"], Tensor) != self._counts_on_device(group):
                states = self._plan(index, group, params, grads)
            steps = [state["step"] for state in states]
            # Counts on a device are compared by identity: reading their values would wait for the device.
            keys = [id(step) for step in steps] if isinstance(steps[0], Tensor) else steps
            if keys.count(keys[0]) == len(keys):
                yield Launch(group, steps[0] + 1, params, grads, states)
                continue
            for key in dict.fromkeys(keys):
                indices = [i for i, other in enumerate(keys) if other == key]
                yield Launch(
                    group,
                    steps[indices[0]] + 1,
                    [params[i] for i in indices],
                    [grads[i] for i in indices],
                    [states[i] for i in indices],
                )

    def _run(self, launch: Launch) -> None:
        try:
            self._update(self._local(launch))
        except RuntimeError:
            self._update(self._local(self._with_strides_of_params(launch)))

    def _local(self, launch: Launch) -> Launch:
        """Returns the launch with the parts of its tensors that this process holds: usually the launch itself."""
        return local_launch(type(self).__name__, launch) if self._has_shards else launch

    def _count(self, launch: Launch) -> None:
        """Counts the step of a launch that is done."""
        for state in launch.states:
            state["step"] = launch.step

    def _with_strides_of_params(self, launch: Launch) -> Launch:
        """Returns a rejected launch with gradients and states in the memory order of their parameters.

        Called while the op's error is handled; the op raised it before it changed anything. Raises that error again if
        the memory order was not its cause, or this optimizer's own error if one of its checks fails. The states stay in
        that order, which changes when a model is converted to channels_last.
        """
        index = next(i for i, group in enumerate(self.param_groups) if group is launch.group)
        check_pairs(type(self).__name__, index, launch.group["params"], launch.params, launch.grads, self.device)
        grads = list(map(_in_order_of, launch.params, launch.grads))
        is_changed = not all(map(is_, grads, launch.grads))
        for param, state in zip(launch.params, launch.states, strict=True):
            for name, value in state.items():
                if name != "step" and isinstance(value, Tensor) and value.shape == param.shape:
                    state[name] = _in_order_of(param, value)
                    is_changed = is_changed or state[name] is not value
        if not is_changed:
            raise
        return launch._replace(grads=grads)

    def _plan(self, index: int, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[State]:
        """Returns the states of parameters that have gradients; creates missing ones, and keeps all for later steps."""
        check_pairs(type(self).__name__, index, group["params"], params, grads, self.device)
        states = [self._state(group, param) for param in params]
        check_states(type(self).__name__, index, group["params"], params, states)
        if not self.elementwise:
            check_whole(type(self).__name__, params)
        self._has_shards = self._has_shards or any(map(is_sharded, params))
        self._plans[index] = (params, states)
        self._planned_states = list(self.state.values())
        return states

    def _state(self, group: Group, param: Tensor) -> State:
        state: State = self.state[param]
        state["step"] = int(state.get("step", 0))
        for name in self.state_names:
            if name not in state:
                dtype = self._state_dtype(param, group)
                state[name] = torch.full_like(param, self._initial_value(name, group), dtype=dtype, requires_grad=False)
        return state


def _in_order_of(param: Tensor, value: Tensor) -> Tensor:
    """Returns a tensor of the parameter's shape in its memory order. Copies only if necessary."""
    return value if value.stride() == param.stride() else torch.empty_like(param, dtype=value.dtype).copy_(value)


def _numbered(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns a state dict whose states have numbers as keys.

    A copy in JSON has strings. torch's distributed checkpoints load what is no tensor, such as counts, under a string
    beside the number.
    """
    states: dict[Any, Any] = {}
    for key, values in state_dict["state"].items():
        number = int(key) if isinstance(key, str) and key.isdecimal() else key
        states[number] = {**states[number], **values} if number in states else values
    return {**state_dict, "state": states}


@cache
def _keep_steps_uncompiled() -> None:
    """Excludes steps from torch.compile, which would compile a step again for every learning rate.

    Called when an optimizer is created, for which torch imports its compiler anyway. At import it would make the import
    of this module a second slower.
    """
    reason = "a step is one call of an op for each group: there is nothing in it to compile"
    ListOptimizer._step_groups = torch.compiler.disable(ListOptimizer._step_groups, reason=reason)  # type: ignore[method-assign, no-untyped-call]
