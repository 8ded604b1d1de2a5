"""The layers of block-sparse attention: DeepSpeed's classes, and what adapts a model and its inputs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support.attention.float64_errors import block_sparse, randoms
from torch import nn

from opforge.ops.sparse_attention import (
    BertSparseSelfAttention,
    FixedSparsityConfig,
    SparseAttentionUtils,
    SparseSelfAttention,
)

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]


def test_the_module_has_deepspeeds_arguments():
    config = FixedSparsityConfig(num_heads=2, num_local_blocks=2)
    module = SparseSelfAttention(config, max_seq_length=128)
    assert module.master_layout.shape == (2, 8, 8) and "master_layout" in dict(module.named_buffers())
    q, k, v = randoms([(2, 2, 64, 16)] * 3, torch.float16)
    padding, pairs = torch.zeros(2, 1, 1, 64), torch.ones(64, 64).tril()
    padding[:, ..., 50:] = -torch.inf
    out = module(q, k.transpose(2, 3).contiguous(), v, key_padding_mask=padding, attn_mask=pairs)
    hidden = torch.zeros(64, 64).masked_fill_(pairs == 0, -torch.inf)
    doubles = (tensor.double() for tensor in (q, k, v))
    expected = block_sparse(*doubles, padding[:, None], hidden, layout=module.get_layout(64), block=16)
    assert (out - expected).abs().max() < 2e-3
    assert torch.equal(module.get_layout(64), module.master_layout[:, :4, :4])
    # Another module with another layout for the same length has its own.
    other = SparseSelfAttention(FixedSparsityConfig(num_heads=2, num_local_blocks=4), max_seq_length=128)
    assert not torch.equal(other(q, k, v), module(q, k, v))


def test_bert_layers_are_replaced_and_keep_their_projections():
    class Bert(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.config = SimpleNamespace(hidden_size=32, num_attention_heads=2, max_position_embeddings=16)
            layer = nn.Module()
            layer.attention = nn.Module()
            layer.attention.self = BertSparseSelfAttention(self.config, FixedSparsityConfig(2, num_local_blocks=1))
            inner = nn.Module()
            inner.encoder, inner.embeddings = nn.Module(), nn.Module()
            inner.encoder.layer = nn.ModuleList([layer])
            inner.embeddings.position_embeddings = nn.Embedding(16, 32)
            setattr(self, name, inner)

    utils, model = SparseAttentionUtils, Bert("bert")
    before = model.bert.encoder.layer[0].attention.self
    config = FixedSparsityConfig(2, num_local_blocks=2)
    assert utils.replace_model_self_attention_with_sparse_self_attention(model, 64, config) is model
    after = model.bert.encoder.layer[0].attention.self
    assert after is not before and after.query is before.query and after.value is before.value
    assert model.config.max_position_embeddings == 64
    tokens = torch.randn(2, 64, 32)
    mask = torch.zeros(2, 64)
    q, k, v = (after.transpose_for_scores(layer(tokens)) for layer in (after.query, after.key, after.value))
    expected = block_sparse(q, k, v, mask[:, None, None, None], layout=config.make_layout(64), block=16)
    assert torch.allclose(after(tokens, mask), expected.transpose(1, 2).flatten(2), atol=1e-6)

    weight = model.bert.embeddings.position_embeddings.weight.clone()
    utils.extend_position_embedding(model, 64)
    assert torch.equal(model.bert.embeddings.position_embeddings.weight, weight.repeat(4, 1))
    roberta = Bert("roberta")
    weight = roberta.roberta.embeddings.position_embeddings.weight.clone()
    utils.extend_position_embedding(roberta, 28)
    extended = roberta.roberta.embeddings.position_embeddings.weight
    assert torch.equal(extended, torch.cat([weight, weight[2:]])) and roberta.config.max_position_embeddings == 30
    tokenizer = SimpleNamespace(model_max_length=4, init_kwargs={})
    assert utils.update_tokenizer_model_max_length(tokenizer, 64).init_kwargs == {"model_max_length": 64}
    with pytest.raises(ValueError, match="the model is Linear, expected one with the attribute bert or roberta"):
        utils.extend_position_embedding(nn.Linear(1, 1), 4)
    with pytest.raises(ValueError, match="max_position is 8, expected more than the model's 64 positions"):
        utils.extend_position_embedding(model, 8)


def test_inputs_are_padded_to_whole_blocks():
    ids, mask = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5)
    added, *padded = SparseAttentionUtils.pad_to_block_size(4, ids, mask, ids, None, None, 7, None)
    assert added == 3 and padded[3:] == [None, None]
    assert padded[0][0].tolist() == [1] * 5 + [7] * 3 and padded[2][0].tolist() == [1] * 5 + [0] * 3
    assert padded[1][0].tolist() == [1] * 5 + [0] * 3
    embeddings = nn.Embedding(8, 3)
    hidden = torch.zeros(2, 5, 3)
    added, *padded = SparseAttentionUtils.pad_to_block_size(4, None, mask, None, None, hidden, 7, embeddings)
    assert torch.equal(padded[4][:, 5:], embeddings.weight[7].expand(2, 3, 3))
    assert SparseAttentionUtils.unpad_sequence_output(added, padded[4]).shape == (2, 5, 3)
    assert SparseAttentionUtils.pad_to_block_size(5, ids, mask, None, None, None, 7, None)[0] == 0
    assert SparseAttentionUtils.unpad_sequence_output(0, hidden) is not None
