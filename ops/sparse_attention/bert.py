"""Block-sparse attention inside models of the BERT family: a layer, and functions that adapt a model and its inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .configs import FixedSparsityConfig, SparsityConfig
from .layouts import split
from .self_attention import SparseSelfAttention


class BertSparseSelfAttention(nn.Module):
    """BERT's self-attention layer over the blocks that a `SparsityConfig` lists.

    Args:
        config: Has `hidden_size` and `num_attention_heads`.
        sparsity_config: Makes the layout, for as many heads. `FixedSparsityConfig` of the heads by default.
    """

    def __init__(self, config: Any, sparsity_config: SparsityConfig | None = None) -> None:
        super().__init__()
        heads = config.num_attention_heads
        if config.hidden_size % heads:
            raise ValueError(
                f"hidden_size is {config.hidden_size}, expected a multiple of num_attention_heads, {heads}"
            )
        self.num_attention_heads = heads
        self.attention_head_size = config.hidden_size // heads
        self.all_head_size = config.hidden_size
        self.query, self.key, self.value = (nn.Linear(config.hidden_size, self.all_head_size) for _ in range(3))
        self.sparse_self_attention = SparseSelfAttention(sparsity_config or FixedSparsityConfig(num_heads=heads))

    def transpose_for_scores(self, x: Tensor) -> Tensor:
        """Returns [batch, length, hidden] as [batch, heads, length, size]."""
        return split(x, -1, (self.num_attention_heads, self.attention_head_size)).transpose(1, 2)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Returns the attention's result, [batch, length, hidden]; the mask is that of keys, [batch, length]."""
        parts = [self.transpose_for_scores(layer(hidden_states)) for layer in (self.query, self.key, self.value)]
        out = self.sparse_self_attention(*parts, key_padding_mask=attention_mask)
        result: Tensor = out.transpose(1, 2).flatten(2)
        return result


class SparseAttentionUtils:
    """Adapts models of transformers (BERT, RoBERTa) and their inputs to block-sparse attention."""

    @staticmethod
    def extend_position_embedding(model: Any, max_position: int) -> Any:
        """Repeats the position embeddings until there are up to `max_position`. Returns the model.

        RoBERTa's first two positions are reserved, and are kept.
        """
        kind, reserved = _kind(model)
        embeddings = getattr(model, kind).embeddings.position_embeddings
        weight = embeddings.weight.data
        before = weight.shape[0] - reserved
        if max_position <= before:
            raise ValueError(f"max_position is {max_position}, expected more than the model's {before} positions")
        repeated = weight[reserved:].repeat(max(1, max_position // before), 1)
        embeddings.weight.data = torch.cat([weight[:reserved], repeated])
        embeddings.num_embeddings = embeddings.weight.shape[0]
        model.config.max_position_embeddings = max_position + reserved
        return model

    @staticmethod
    def update_tokenizer_model_max_length(tokenizer: Any, max_position: int) -> Any:
        """Sets the longest sequence of a tokenizer. Returns the tokenizer."""
        tokenizer.model_max_length = max_position
        tokenizer.init_kwargs["model_max_length"] = max_position
        return tokenizer

    @staticmethod
    def replace_model_self_attention_with_sparse_self_attention(
        model: Any, max_position: int, sparsity_config: SparsityConfig | None = None
    ) -> Any:
        """Puts `BertSparseSelfAttention` in the place of each self-attention layer. Returns the model."""
        kind, reserved = _kind(model)
        model.config.max_position_embeddings = max_position + reserved
        layers = getattr(model, kind).encoder.layer
        SparseAttentionUtils.replace_self_attention_layer_with_sparse_self_attention_layer(
            model.config, layers, sparsity_config
        )
        return model

    @staticmethod
    def replace_self_attention_layer_with_sparse_self_attention_layer(
        config: Any, layers: Any, sparsity_config: SparsityConfig | None = None
    ) -> Any:
        """Does this for a list of layers; each keeps its projections. Returns the list."""
        for layer in layers:
            attention = BertSparseSelfAttention(config, sparsity_config)
            for name in ("query", "key", "value"):
                setattr(attention, name, getattr(layer.attention.self, name))
            layer.attention.self = attention
        return layers

    @staticmethod
    def pad_to_block_size(
        block_size: int,
        input_ids: Tensor | None,
        attention_mask: Tensor,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        pad_token_id: int,
        model_embeddings: Any,
    ) -> tuple[int, Tensor | None, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Pads a batch to whole blocks. Padding is hidden by the mask.

        Args:
            block_size: Tokens of a block.
            input_ids: Tokens, [batch, length], or None with `inputs_embeds`.
            attention_mask: 1 for tokens, 0 for padding.
            token_type_ids: Is padded with 0.
            position_ids: Is padded with `pad_token_id`.
            inputs_embeds: [batch, length, hidden], is padded with the embedding of `pad_token_id`.
            pad_token_id: The token that stands for padding.
            model_embeddings: Returns the embeddings of tokens.

        Returns:
            The number of tokens that were added, and the five tensors; None for those that are None.
        """
        tokens = input_ids if input_ids is not None else inputs_embeds
        if tokens is None:
            raise ValueError("input_ids and inputs_embeds are both None, expected one of them")
        batch, length = tokens.shape[:2]
        added = -length % block_size
        if added == 0:
            return added, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds
        if inputs_embeds is not None:
            padding = inputs_embeds.new_full((batch, added), pad_token_id, dtype=torch.long)
            inputs_embeds = torch.cat([inputs_embeds, model_embeddings(padding)], dim=-2)

        def padded(tensor: Tensor | None, value: int) -> Tensor | None:
            return None if tensor is None else nn.functional.pad(tensor, (0, added), value=value)

        mask = nn.functional.pad(attention_mask, (0, added), value=0)
        input_ids, position_ids = padded(input_ids, pad_token_id), padded(position_ids, pad_token_id)
        return added, input_ids, mask, padded(token_type_ids, 0), position_ids, inputs_embeds

    @staticmethod
    def unpad_sequence_output(pad_len: int, sequence_output: Tensor) -> Tensor:
        """Returns the output of a model without the padding that `pad_to_block_size` has added."""
        return sequence_output[:, : sequence_output.shape[1] - pad_len]


def _kind(model: Any) -> tuple[str, int]:
    """Returns the attribute that holds the model, and its reserved positions."""
    for kind, reserved in (("bert", 0), ("roberta", 2)):
        if hasattr(model, kind):
            return kind, reserved
    raise ValueError(f"the model is {type(model).__name__}, expected one with the attribute bert or roberta")
