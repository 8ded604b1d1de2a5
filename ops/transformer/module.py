"""A transformer layer as a torch module, with the parameters and the configuration of DeepSpeed's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from . import layer
from .steps import Form, Weights


@dataclass
class TransformerConfig:
    """The configuration of a layer, with the names of DeepSpeedTransformerConfig; `TransformerLayer` takes either."""

    hidden_size: int
    heads: int
    intermediate_size: int = 0
    """Channels between the two linear layers; 4 times hidden_size if 0."""
    attn_dropout_ratio: float = 0.0
    hidden_dropout_ratio: float = 0.0
    num_hidden_layers: int = 1
    """Layers of the model, for `adjust_init_range`."""
    initializer_range: float = 0.02
    """Standard deviation of new weights."""
    layer_norm_eps: float = 1e-12
    pre_layer_norm: bool = True
    """Whether the norms are before the two halves, not after."""
    normalize_invertible: bool = False
    """Computes the inputs of norms again from their results, to save memory. No weight of a norm may be 0."""
    gelu_checkpoint: bool = False
    """Computes the results of GELU again, to save memory."""
    attn_dropout_checkpoint: bool = False
    """Computes the probabilities that dropout kept again, to save memory."""
    adjust_init_range: bool = True
    """Divides the deviation of the weights that are added to the residual by sqrt(2 num_hidden_layers)."""
    return_tuple: bool = False


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: Form, training: bool, input: Tensor, mask: Tensor | None, *weights: Tensor) -> Tensor:
        results = layer.compute(_ops[0], form, input, mask, Weights(*weights), training)
        ctx.form, ctx.count = form, len(results)
        keeps = form.pre_layer_norm or not form.normalize_invertible
        if not keeps:
            results[1] = results[0]  # the input of the last norm follows from the output
        ctx.has_mask = mask is not None
        masks = () if mask is None else (mask,)
        inputs = results[1] if form.pre_layer_norm and form.normalize_invertible else input
        # No gradient needs the output, which may be changed in place, unless it is results[1].
        ctx.save_for_backward(results[1], *results[1:], inputs, *masks, *weights)
        return results[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        saved, input, rest = tensors[: ctx.count], tensors[ctx.count], tensors[ctx.count + 1 :]
        mask, weights = (rest[0], rest[1:]) if ctx.has_mask else (None, rest)
        with torch.autocast("cpu", enabled=False):
            results = layer.gradients(_ops[0], ctx.form, grads[0].contiguous(), saved, input, mask, Weights(*weights))
        return None, None, results[0], None, *results[1:]


class TransformerLayer(nn.Module):
    """A layer of BERT: attention and two linear layers with GELU (in the form with tanh), on the CPU.

    Args:
        config: A TransformerConfig, or DeepSpeed's. Its fp16 and stochastic_mode are not needed: tensors have the
            dtype of the parameters, and results do not depend on the order of threads.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        _load_op()
        self.config = config
        width = config.hidden_size
        inner = config.intermediate_size if config.intermediate_size > 0 else 4 * width
        modes = ("pre_layer_norm", "attn_dropout_checkpoint", "normalize_invertible", "gelu_checkpoint")
        numbers = (config.heads, config.attn_dropout_ratio, config.hidden_dropout_ratio, config.layer_norm_eps)
        self._form = layer.checked(Form(*numbers, *(getattr(config, name) for name in modes)), width)
        sizes = ((3 * width, width), (3 * width,), (width, width), *((width,),) * 3, (inner, width), (inner,))
        for name, size in zip(Weights._fields, (*sizes, (width, inner), *((width,),) * 3), strict=True):
            self.register_parameter(name, nn.Parameter(torch.zeros(size)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights, and sets biases to 0 and norms to 1."""
        config = self.config
        deviation = config.initializer_range
        for name in Weights._fields:
            parameter = getattr(self, name)
            if name in ("attn_nw", "norm_w"):
                nn.init.ones_(parameter)
            elif parameter.dim() == 1:
                nn.init.zeros_(parameter)
            else:
                is_added = config.adjust_init_range and name in ("attn_ow", "output_w")
                share = math.sqrt(2.0 * config.num_hidden_layers) if is_added else 1.0
                nn.init.normal_(parameter, std=deviation / share)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Any:
        """Returns the result, [batch, tokens, channels]; a tuple of it if the configuration has return_tuple.

        Args:
            hidden_states: [batch, tokens, channels].
            attention_mask: Numbers that are added to the scores, such as [batch, 1, 1, tokens]. It gets no gradient.
        """
        tensors = (hidden_states, *(getattr(self, name) for name in Weights._fields))
        if torch.is_autocast_enabled("cpu"):
            # As torch's linear layers do. Within the layer autocast would cast some products, and not those in place.
            dtype = torch.get_autocast_dtype("cpu")
            tensors = tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in tensors)
        hidden_states, *weights = tensors
        with torch.autocast("cpu", enabled=False):
            out: Any = _Layer.apply(self._form, self.training, hidden_states, attention_mask, *weights)  # type: ignore[no-untyped-call]
        return (out,) if getattr(self.config, "return_tuple", False) else out


_ops: list[Any] = []
"""The loaded op, once there is a layer. Not a cached function: torch.compile would warn of it."""


def _load_op() -> None:
    if not _ops:
        from opforge.builders.cpu.transformer.transformer import TransformerBuilder

        _ops.append(TransformerBuilder().load())
