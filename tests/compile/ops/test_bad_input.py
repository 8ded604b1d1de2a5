"""Wrong arguments of the ops for transformers on the CPU: one error each, before anything is written."""

from __future__ import annotations

import pytest
import torch
from support.ragged.batches import RaggedBatch

from opforge.ops import FPQuantizer, TransformerConfig, TransformerLayer, evoformer_attention
from opforge.ops.host_op import host_op
from opforge.ops.sparse_attention import MatMul, Softmax, SparseSelfAttention, sparse_attention
from opforge.ops.sparse_attention.configs import DenseSparsityConfig
from opforge.ops.transformer.layer import SAVED

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]
POISON = 7
TWO_DEVICES = "tensors are on cpu and meta, expected one device: move them with .to()"
EPS = 1e-5


def ones(*shape, dtype=None):
    return torch.ones(shape, dtype=dtype)


def poison(*shape, dtype=None):
    return torch.full(shape, POISON, dtype=dtype or torch.float32)


def integers(*values):
    return torch.tensor(values, dtype=torch.int32)


def evoformer(size=8):
    q = ones(1, 2, 3, 2, size)
    return {"q": q, "k": q, "v": q, "bias1": ones(1, 2, 1, 1, 3), "bias2": ones(1, 1, 2, 3, 3)}


def evoformer_gradients():
    given = evoformer()
    q, sums = given["q"], ones(2, 2, 32)
    return (
        {"go": q, **{name: given[name] for name in "qkv"}, "o": q, "lse": sums, "delta": poison(2, 2, 32)}
        | {"bias1": given["bias1"], "bias2": given["bias2"]}
        | {name: poison(*q.shape) for name in ("gq", "gk", "gv")}
        | {"gb1": poison(1, 2, 1, 1, 3), "gb2": poison(1, 1, 2, 3, 3)}
    )


def cache(**_options):
    batch = RaggedBatch([(3, 2)])
    names = ("batch_metadata", "seq_metadata", "tokens_to_seq", "kv_ptrs")
    state = {"kv_cache": poison(batch.pages, 4, 2, 1, 16), "q": poison(3, 32), "k": ones(3, 16), "v": ones(3, 16)}
    return {**state, "rotary_dim": 16, "theta_base": 1e4, **dict(zip(names, batch.described, strict=True))}, batch


def trained():
    state, batch = cache()
    before = {name: state[name] for name in ("kv_cache", "q", "k", "v")}
    return {**before, "inv_freq": ones(8), **{name: state[name] for name in list(state)[6:]}}, batch


def copied():
    state, batch = cache()
    return {name: value for name, value in state.items() if name not in ("rotary_dim", "theta_base")}, batch


def atoms():
    batch = RaggedBatch([(3, 2)])
    described = torch.zeros(1, 8, dtype=torch.int32)
    host_op("RaggedOpsBuilder").build_atoms(described, *batch.described[:2], batch.pointers, 4, 4)
    keys = ones(batch.pages, 4, 1, 16)
    return {
        "out": poison(3, 32),
        "q": ones(3, 32),
        "k": keys,
        "v": keys,
        "attention_atoms": described,
        "softmax_scale": 1.0,
        "is_causal": True,
    }, batch


# The arguments of a call that is right, in DeepSpeed's order. What is written is poisoned.
CALLS = {
    ("InferenceCoreBuilder", "bias_activation"): lambda: {
        "activation": poison(2, 4),
        "bias": ones(4),
        "act_type": 0,
    },
    ("InferenceCoreBuilder", "gated_activation"): lambda: {
        "output": poison(2, 2),
        "input": ones(2, 4),
        "bias": ones(4),
        "activation_type": 3,
    },
    ("InferenceCoreBuilder", "layer_norm"): lambda: {
        "output": poison(2, 4),
        "input": ones(2, 4),
        "gamma": ones(4),
        "beta": ones(4),
        "epsilon": EPS,
    },
    ("InferenceCoreBuilder", "pre_layer_norm"): lambda: {
        "res_output": poison(2, 4),
        "norm_output": poison(2, 4),
        "input": ones(2, 4),
        "residual": ones(2, 4),
        "gamma": ones(4),
        "beta": ones(4),
        "epsilon": EPS,
    },
    ("InferenceCoreBuilder", "post_layer_norm"): lambda: {
        "output": poison(2, 4),
        "input": ones(2, 4),
        "residual": ones(2, 4),
        "gamma": ones(4),
        "beta": ones(4),
        "epsilon": EPS,
    },
    ("InferenceCoreBuilder", "rms_norm"): lambda: {
        "norm_output": poison(2, 4),
        "norm_input": ones(2, 4),
        "gamma": ones(4),
        "epsilon": EPS,
    },
    ("InferenceCoreBuilder", "rms_pre_norm"): lambda: {
        "norm_output": poison(2, 4),
        "residual_output": poison(2, 4),
        "norm_input": ones(2, 4),
        "residual_input": ones(2, 4),
        "gamma": ones(4),
        "epsilon": EPS,
    },
    ("InferenceCoreBuilder", "blas_linear"): lambda: {
        "output": poison(2, 4),
        "hidden_states": ones(2, 3),
        "weights": ones(4, 3),
    },
    ("InferenceCoreBuilder", "blas_4d_matmul"): lambda: {
        "C": poison(1, 2, 4),
        "B": ones(1, 3, 4),
        "A": ones(1, 2, 3),
    },
    ("SpatialInferenceBuilder", "nhwc_bias_add_bias_add"): lambda: {
        "input": ones(1, 4, 2, 2),
        "bias": ones(4),
        "other": ones(1, 4, 2, 2),
        "other_bias": ones(4),
    },
    ("RandomLTDBuilder", "token_sort_"): lambda: {
        "unsorted_token_ids": poison(1, 1, 2, dtype=torch.int32),
        "original_tokens": 8,
    },
    ("RandomLTDBuilder", "token_gather"): lambda: {
        "activations": ones(1, 4, 3),
        "sorted_indices": integers(0, 3)[None],
        "batch_first": True,
    },
    ("RandomLTDBuilder", "token_scatter_"): lambda: {
        "all_activations": poison(1, 4, 3),
        "layer_activations": ones(1, 2, 3),
        "sorted_indices": integers(0, 3)[None],
        "batch_first": True,
    },
    ("RandomLTDBuilder", "mask_gather_bert"): lambda: {
        "dense_mask": ones(1, 1, 4, 4),
        "sorted_indices": integers(0, 3)[None, None],
    },
    ("RandomLTDBuilder", "mask_gather_gpt"): lambda: {"dense_mask": ones(1, 1, 4, 4), "truncated_seq_len": 2},
    ("EvoformerAttnBuilder", "attention"): lambda: (
        evoformer()
        | {
            "o": poison(1, 2, 3, 2, 8),
            "lse": poison(2, 2, 32),
        }
    ),
    ("EvoformerAttnBuilder", "attention_bwd"): evoformer_gradients,
    ("SparseAttnBuilder", "sdd_segment"): lambda: {"layout": ones(1, 2, 2, dtype=torch.int32), "start_width": 2},
    ("FPQuantizerBuilder", "quantize"): lambda: {
        "out": poison(4, 516, dtype=torch.uint8),
        "val": ones(4, 512),
        "group_size": 512,
        "stochastic_rounding": 0,
        "q_bits": 8,
        "q_mantisa_bits": 3,
    },
    ("FPQuantizerBuilder", "dequantize"): lambda: {
        "val": poison(4, 512),
        "val_q": ones(4, 516, dtype=torch.uint8),
        "group_size": 512,
        "q_mantisa_bits": 3,
        "q_exponent_bits": 4,
    },
    ("FPQuantizerBuilder", "selective_dequantize"): lambda: {
        "val": poison(1, 512),
        "val_q": ones(4, 516, dtype=torch.uint8),
        "indexes": integers(3),
        "group_size": 512,
        "q_mantisa_bits": 3,
        "q_exponent_bits": 4,
    },
    ("FPQuantizerBuilder", "get_scales"): lambda: {"out": ones(4, 516, dtype=torch.uint8), "num_groups": 4},
    ("RaggedOpsBuilder", "kv_rotary_embeddings"): cache,
    ("RaggedOpsBuilder", "kv_trained_rotary_embeddings"): trained,
    ("RaggedOpsBuilder", "linear_kv_copy"): copied,
    ("RaggedOpsBuilder", "flash_attn_by_atoms"): atoms,
    ("RaggedOpsBuilder", "build_atoms"): lambda: {
        "atoms": poison(2, 8, dtype=torch.int32),
        "batch_metadata": integers(3, 1),
        "seq_metadata": integers(0, 3, 2, 0)[None],
        "kv_ptrs": ones(1, dtype=torch.int64),
        "q_block_size": 4,
        "kv_block_size": 4,
    },
    ("RaggedOpsBuilder", "ragged_embed"): lambda: {
        "embedded_tokens": poison(3, 4),
        "input_ids": integers(0, 1, 2),
        "embedding_weight": ones(5, 4),
        "position_embedding_weight": ones(9, 4),
        "pos_embed_offset": 0,
        "batch_metadata": integers(3, 1),
        "seq_metadata": integers(0, 3, 2, 0)[None],
        "tokens_to_seq": integers(0, 0, 0),
        "kv_ptrs": ones(1, dtype=torch.int64),
    },
    ("RaggedOpsBuilder", "gather_for_logits"): lambda: {
        "final_token_acts": poison(1, 4),
        "all_acts": ones(3, 4),
        "batch_metadata": integers(3, 1),
        "seq_metadata": integers(0, 3, 2, 0)[None],
    },
    ("RaggedOpsBuilder", "top_k_gating"): lambda: {
        "expert_counts": poison(3, dtype=torch.int32),
        "scores": poison(2, 1),
        "assignments": poison(2, 1, dtype=torch.int32),
        "offsets": poison(2, 1, dtype=torch.int32),
        "logits": ones(2, 3),
        "batch_metadata": integers(2, 1),
    },
    ("RaggedOpsBuilder", "moe_scatter"): lambda: {
        "moe_input": poison(2, 4),
        "expert_count_cumsums": poison(2, dtype=torch.int64),
        "mapped_slots": poison(2, 1, dtype=torch.int32),
        "activations": ones(2, 4),
        "expert_counts": integers(1, 1),
        "assignments": integers(0, 1)[:, None],
        "offsets": integers(0, 0)[:, None],
    },
    ("RaggedOpsBuilder", "moe_gather"): lambda: {
        "layer_output": poison(2, 4),
        "moe_output": ones(2, 4),
        "scores": ones(2, 1),
        "mapped_slots": integers(0, 1)[:, None],
        "expert_count": poison(2, dtype=torch.int32),
        "normalize_scales": True,
    },
}
BUILDERS = {function: builder for builder, function in CALLS}


def call(function, changes=None):
    """Calls a function with some arguments changed, and returns what it writes, with what it was before."""
    arguments = CALLS[BUILDERS[function], function]()
    arguments, batch = arguments if isinstance(arguments, tuple) else (arguments, None)
    poisoned = [
        value
        for value in arguments.values()
        if isinstance(value, torch.Tensor) and value.numel() and (value == POISON).all()
    ]
    arguments |= changes(arguments, batch) if callable(changes) else changes or {}
    try:
        getattr(host_op(BUILDERS[function]), function)(*arguments.values())
    except (RuntimeError, ValueError, TypeError) as error:
        assert all((tensor == POISON).all() for tensor in poisoned)
        return str(error)
    return ""


@pytest.mark.parametrize("function", BUILDERS)
def test_the_calls_that_are_changed_are_right(function):
    assert call(function) == ""


OF_LINEAR = "the output is torch.float32 on {} and an input torch.float32 on {}, expected one dtype and device"
OF_ATOMS = "build_atoms has tensors of the device meta, expected tensors on the CPU: it returns their number"
OTHER_TEXTS = {
    ("blas_linear", "output"): OF_LINEAR.format("meta", "cpu"),
    ("blas_linear", "hidden_states"): OF_LINEAR.format("cpu", "meta"),
    ("blas_linear", "weights"): OF_LINEAR.format("cpu", "meta"),
    ("blas_4d_matmul", "C"): OF_LINEAR.format("meta", "cpu"),
    ("blas_4d_matmul", "B"): OF_LINEAR.format("cpu", "meta"),
    ("blas_4d_matmul", "A"): OF_LINEAR.format("cpu", "meta"),
} | {("build_atoms", name): OF_ATOMS for name in ("atoms", "batch_metadata", "seq_metadata", "kv_ptrs")}


def moved(name):
    """Returns what changes the device of an argument."""
    return lambda given, _: {name: given[name].to("meta")}


@pytest.mark.parametrize("function", BUILDERS)
def test_tensors_on_two_devices(function):
    """Each tensor in turn is on another device than the rest."""
    arguments = CALLS[BUILDERS[function], function]()
    arguments = arguments[0] if isinstance(arguments, tuple) else arguments
    names = [name for name, value in arguments.items() if isinstance(value, torch.Tensor)]
    texts = {name: call(function, moved(name)) for name in names}
    if len(names) > 1:
        assert texts == {name: OTHER_TEXTS.get((function, name), TWO_DEVICES) for name in names}


OFFERED = "expected float32, bfloat16 or float16"
OF_TORCH = "expected one of torch.float32, torch.bfloat16, torch.float16"
ANY_DTYPE = ("token_sort_", "token_gather", "token_scatter_", "mask_gather_bert", "mask_gather_gpt")
WITHOUT_VALUES = ("sdd_segment", "get_scales", "build_atoms", "gather_for_logits", "moe_scatter")
"""They move elements of any dtype, or have no floating-point numbers."""


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("function", [name for name in BUILDERS if name not in ANY_DTYPE + WITHOUT_VALUES])
def test_dtypes_that_are_not_offered(function, dtype):
    def changed(given, _):
        return {
            name: value.to(dtype)
            for name, value in given.items()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        }

    text = call(function, changed)
    assert f" is {str(dtype).removeprefix('torch.')}, {OFFERED}" in text or f" is {dtype}, {OF_TORCH}" in text


def atom(column, value):
    """Returns what changes a number of the atom."""

    def change(given, _):
        described = given["attention_atoms"].clone()
        described[0, column] = value
        return {"attention_atoms": described}

    return change


def pages(number):
    """Returns what changes the pages of the sequence."""

    def change(_, batch):
        batch.lists[0].fill_(number)
        return {}

    return change


SHARED = "{} shares memory with {}, expected memory of its own: pass .clone() of one"


def shared(name, written):
    """Returns what makes an argument a part of the memory of one that is written, with the same values."""

    def change(given, _):
        memory = given[written].new_full((64,), POISON)
        return {key: memory[: given[key].numel()].view(given[key].shape) for key in (written, name)}

    return change


WRONG = [
    ("layer_norm", {"gamma": ones(3)}, "gamma has shape [3], expected [4]: one for each channel"),
    ("layer_norm", {"beta": ones(1, 4)}, "beta has shape [1, 4], expected [4]: one for each channel"),
    ("layer_norm", {"output": poison(2, 3)}, "the output has shape [2, 3], expected [2, 4], that of input"),
    ("layer_norm", {"input": ones(4, 2).t()}, "input is not contiguous: pass .contiguous() of it"),
    ("pre_layer_norm", {"residual": ones(2, 3)}, "the residual has shape [2, 3], expected [2, 4], that of input"),
    (
        "pre_layer_norm",
        {"res_output": poison(3, 4)},
        "the residual output has shape [3, 4], expected [2, 4], that of input",
    ),
    ("post_layer_norm", {"residual": ones(4)}, "the residual has shape [4], expected [2, 4], that of input"),
    (
        "rms_norm",
        {"gamma": ones(4).half()},
        "gamma and norm_input differ in dtype, expected one: convert one of them with .to()",
    ),
    (
        "rms_pre_norm",
        {"residual_output": poison(4)},
        "the residual output has shape [4], expected [2, 4], that of norm_input",
    ),
    ("bias_activation", {"act_type": 4}, "act_type is 4, expected 0 (GELU), 1 (ReLU), 2 (SiLU) or 6 (identity)"),
    ("bias_activation", {"bias": ones(5)}, "bias has shape [5], expected [4]: one for each channel"),
    ("gated_activation", {"activation_type": 6}, "activation_type is 6, expected 3 (GEGLU), 4 (ReGLU) or 5 (SiGLU)"),
    (
        "gated_activation",
        {"input": ones(2, 3)},
        (
            "output has shape [2, 2] and input [2, 3], expected one shape, with half as many "
            "channels in output: each has a gate and a value in input"
        ),
    ),
    (
        "blas_linear",
        {"weights": ones(4, 2)},
        (
            "weights has shape (4, 2) and hidden_states (2, 3), expected [out_features, "
            "in_features] and [..., in_features]"
        ),
    ),
    (
        "blas_4d_matmul",
        {"B": ones(2, 3, 4)},
        "A has shape (1, 2, 3) and B (2, 3, 4), expected [..., N, K] and [..., K, M], with one batch",
    ),
    (
        "nhwc_bias_add_bias_add",
        {"input": ones(4, 2)},
        (
            "input has shape (4, 2), expected [batch, channels, height, width] in the memory "
            "format channels_last, or [batch, pixels, channels]"
        ),
    ),
    (
        "nhwc_bias_add_bias_add",
        {"bias": ones(2)},
        "bias has shape [2], expected [4]: one for each channel of the input",
    ),
    (
        "nhwc_bias_add_bias_add",
        {"other": ones(1, 4, 2, 3)},
        "other has shape [1, 2, 3, 4], expected [1, 2, 2, 4], that of input",
    ),
    (
        "nhwc_bias_add_bias_add",
        {"other_bias": ones(4).half()},
        "other_bias and input differ in dtype, expected one: convert one of them with .to()",
    ),
    (
        "token_sort_",
        {"original_tokens": 7},
        "unsorted_token_ids has 7 at position 0, expected 0 to 6: numbers of original_tokens tokens",
    ),
    (
        "token_sort_",
        {"unsorted_token_ids": integers(-1)[None, None]},
        "unsorted_token_ids has -1 at position 0, expected 0 to 7: numbers of original_tokens tokens",
    ),
    (
        "token_gather",
        {"sorted_indices": integers(0, 4)[None]},
        "sorted_indices has 4 at position 1, expected 0 to 3: numbers of tokens",
    ),
    (
        "token_gather",
        {"sorted_indices": integers(0, -1)[None]},
        "sorted_indices has -1 at position 1, expected 0 to 3: numbers of tokens",
    ),
    (
        "token_gather",
        {"sorted_indices": integers(0)},
        (
            "activations has shape (1, 4, 3) and sorted_indices (1,), expected [batch, tokens, "
            "channels] and [batch, retained tokens]"
        ),
    ),
    (
        "token_scatter_",
        {"sorted_indices": integers(4, 0)[None]},
        "sorted_indices has 4 at position 0, expected 0 to 3: numbers of tokens",
    ),
    (
        "token_scatter_",
        {"layer_activations": ones(1, 3, 3)},
        "layer_activations has shape [1, 3, 3], expected [1, 2, 3]: [batch, retained tokens, channels]",
    ),
    (
        "token_scatter_",
        {"layer_activations": ones(1, 2, 3).half()},
        ("layer_activations and all_activations differ in dtype, expected one: convert one of them with .to()"),
    ),
    (
        "mask_gather_bert",
        {"sorted_indices": integers(9)[None, None]},
        "sorted_indices has 9 at position 0, expected 0 to 3: numbers of the mask's tokens",
    ),
    (
        "mask_gather_bert",
        {"dense_mask": ones(1, 2, 4, 4)},
        "dense_mask has shape [1, 2, 4, 4], expected [1, 1, 4, 4]: [batch, 1, tokens, tokens]",
    ),
    (
        "mask_gather_gpt",
        {"truncated_seq_len": 5},
        (
            "truncated_seq_len is 5 and dense_mask has shape (1, 1, 4, 4), expected a mask [batch,"
            " 1, tokens, tokens] of at least as many tokens"
        ),
    ),
    ("attention", evoformer(257), "q has heads of size 257, expected 1 to 256"),
    (
        "attention",
        {"bias1": ones(1, 2, 3, 1, 3)},
        (
            "biases[0] has shape (1, 2, 3, 1, 3), which does not broadcast to the scores, (1, 2, "
            "2, 3, 3): each size but the last must be that one or 1"
        ),
    ),
    (
        "attention",
        {"bias2": ones(3, 3)},
        (
            "biases[1] has shape (3, 3), which does not broadcast to the scores, (1, 2, 2, 3, 3): "
            "each size but the last must be that one or 1"
        ),
    ),
    (
        "attention",
        {"k": ones(1, 2, 3, 1, 8)},
        (
            "k has shape (1, 2, 3, 1, 8), expected (1, 2, any length, 2, 8): [outer, inner, "
            "length, heads, size], as that of q"
        ),
    ),
    (
        "attention",
        {"lse": poison(2, 2, 2)},
        ("log_sums is float32 of shape (2, 2, 2), expected contiguous float32 of shape (1, 2, 2, 3 or more)"),
    ),
    (
        "attention",
        {"o": poison(1, 2, 2, 2, 8)},
        ("out has shape (1, 2, 2, 2, 8), expected (1, 2, 3, 2, 8): [outer, inner, length, heads, size], as that of q"),
    ),
    (
        "attention",
        {"k": ones(1, 2, 3, 2, 8).half()},
        "k is float16, expected the dtype of q, float32: convert it with .to(q.dtype)",
    ),
    (
        "attention_bwd",
        {"go": ones(1, 2, 2, 2, 8)},
        ("dout has shape (1, 2, 2, 2, 8), expected (1, 2, 3, 2, 8): [outer, inner, length, heads, size], as that of q"),
    ),
    (
        "attention_bwd",
        {"gk": poison(1, 2, 4, 2, 8)},
        ("dk has shape (1, 2, 4, 2, 8), expected (1, 2, 3, 2, 8): [outer, inner, length, heads, size], as that of q"),
    ),
    (
        "attention_bwd",
        {"gb1": poison(1, 2, 1, 1, 2)},
        (
            "bias_gradients[0] is float32 of shape (1, 2, 1, 1, 2), expected contiguous float32 of"
            " the bias's shape, (1, 2, 1, 1, 3), or no element if it is not wanted"
        ),
    ),
    (
        "attention_bwd",
        {"gb2": poison(1, 1, 2, 3, 3).half()},
        (
            "bias_gradients[1] is float16 of shape (1, 1, 2, 3, 3), expected contiguous float32 of"
            " the bias's shape, (1, 1, 2, 3, 3), or no element if it is not wanted"
        ),
    ),
    ("attention_bwd", {"delta": poison(2, 2, 3)}, "deltas has a last size of 3, expected that of log_sums, 32"),
    (
        "sdd_segment",
        {"layout": ones(2, 2, dtype=torch.int32)},
        (
            "layout has shape (2, 2), expected contiguous int32 of [heads, rows, columns]: convert"
            " it with .to(torch.int32)"
        ),
    ),
    (
        "sdd_segment",
        {"layout": ones(1, 2, 2)},
        (
            "layout has shape (1, 2, 2), expected contiguous int32 of [heads, rows, columns]: "
            "convert it with .to(torch.int32)"
        ),
    ),
    ("sdd_segment", {"start_width": 0}, "start_width is 0, expected 1 or more"),
    ("quantize", {"q_bits": 5}, "q_bits is 5, expected 12, 8, 6 or 4"),
    ("quantize", {"q_mantisa_bits": 4}, "q_mantissa_bits is 4, expected 3 or 2 for 8 bits"),
    (
        "quantize",
        {"group_size": 500},
        ("group_size is 500, expected a number that divides the 2048 elements: pad the tensor, or use another size"),
    ),
    (
        "quantize",
        {"group_size": 0},
        ("group_size is 0, expected a number that divides the 2048 elements: pad the tensor, or use another size"),
    ),
    (
        "quantize",
        {"out": poison(3, 516, dtype=torch.uint8)},
        ("out has 1548 elements, expected 2064: rows of 516 bytes, the codes of a group of 512 and its scale"),
    ),
    ("quantize", {"out": poison(4, 516)}, "out is float32, expected int8 or uint8"),
    ("dequantize", {"q_exponent_bits": 3}, "q_bits is 7, expected 12, 8, 6 or 4"),
    (
        "dequantize",
        {"val_q": ones(4, 512, dtype=torch.uint8)},
        ("rows has 2048 elements, expected 2064: rows of 516 bytes, the codes of a group of 512 and its scale"),
    ),
    (
        "selective_dequantize",
        {"indexes": integers(4)},
        "indexes[0] is 4, expected a number from 0 to less than 4, the blocks in rows",
    ),
    (
        "selective_dequantize",
        {"indexes": integers(-1)},
        "indexes[0] is -1, expected a number from 0 to less than 4, the blocks in rows",
    ),
    ("selective_dequantize", {"indexes": ones(1)}, "indexes is float32, expected int32 or int64"),
    ("get_scales", {"num_groups": 3}, "num_groups is 3, expected the number of rows of out, (4, 516)"),
    (
        "get_scales",
        {"out": ones(4, 3, dtype=torch.uint8)},
        "rows is torch.uint8 of shape (4, 3), expected uint8 [groups, 4 or more]",
    ),
    (
        "get_scales",
        {"out": ones(4, 129)},
        "rows is torch.float32 of shape (4, 129), expected uint8 [groups, 4 or more]",
    ),
    (
        "kv_rotary_embeddings",
        {"kv_cache": ones(3, 0, 2, 1, 16)},
        "kv_cache has shape [3, 0, 2, 1, 16], expected a token or more of a page",
    ),
    (
        "kv_rotary_embeddings",
        {"tokens_to_seq": integers(0, 0, 1)},
        "tokens_to_seq has 1 at position 2, expected 0 to 0: numbers of sequences",
    ),
    (
        "kv_rotary_embeddings",
        {"seq_metadata": integers(2**31 - 1, 3, 0, 0)[None]},
        "sequence 0 has tokens 2147483647 to 2147483650, expected some of the batch's 3",
    ),
    (
        "kv_rotary_embeddings",
        {"seq_metadata": integers(0, 3, 2**31 - 1, 0)[None]},
        ("sequence 0 has 2147483647 tokens before the batch, expected 0 or more, and less than 2^31 with the batch's"),
    ),
    (
        "kv_rotary_embeddings",
        {"seq_metadata": integers(0, 3, -1, 0)[None]},
        ("sequence 0 has -1 tokens before the batch, expected 0 or more, and less than 2^31 with the batch's"),
    ),
    (
        "kv_rotary_embeddings",
        {"batch_metadata": integers(3, 9)},
        "batch_metadata has 9 sequences, expected 0 to 3, the rows of seq_metadata",
    ),
    (
        "kv_rotary_embeddings",
        {"kv_ptrs": torch.zeros(1, dtype=torch.int64)},
        "kv_ptrs has 0 for sequence 0, expected an address",
    ),
    (
        "kv_rotary_embeddings",
        {"kv_ptrs": integers(0)},
        "kv_ptrs has shape [1], expected an int64 address of a list for each sequence",
    ),
    ("kv_trained_rotary_embeddings", {"inv_freq": ones(9)}, "rotary_dim is 18, expected at most 16, the head size"),
    (
        "linear_kv_copy",
        {"v": ones(2, 16)},
        "v has shape [2, 16], expected [3, 16]: [tokens of q, heads * head size of kv_cache]",
    ),
    ("linear_kv_copy", pages(3), "sequence 0 has page 3, expected 0 to 2, the pages of kv_cache"),
    (
        "flash_attn_by_atoms",
        {"k": ones(3, 0, 1, 16), "v": ones(3, 0, 1, 16)},
        "k has shape [3, 0, 1, 16], expected a token or more of a page",
    ),
    ("flash_attn_by_atoms", pages(3), "atom 0 has page 3, expected 0 to 2, the pages of k"),
    (
        "flash_attn_by_atoms",
        atom(2, 2**31 - 1),
        "atom 0 has queries 2147483647 to 2147483650, expected some of the 3 rows of q",
    ),
    ("flash_attn_by_atoms", atom(3, -1), "atom 0 has queries 0 to -1, expected some of the 3 rows of q"),
    (
        "flash_attn_by_atoms",
        atom(4, 3),
        ("atom 0 has 3 pages for 5 tokens, expected pages of 4 tokens: build the atoms with that kv_block_size"),
    ),
    ("flash_attn_by_atoms", atom(slice(0, 2), 0), "atom 0 has 0 as the address of its pages, expected that of a list"),
    ("flash_attn_by_atoms", {"v": ones(3, 4, 2, 16)}, "v has shape [3, 4, 2, 16], expected [3, 4, 1, 16], that of k"),
    ("flash_attn_by_atoms", {"q": ones(3, 24)}, "out has shape [3, 32], expected [3, 24], that of q"),
    ("build_atoms", {"q_block_size": 1}, "atoms has 2 rows, expected 3 or more: one for each 1 tokens of a sequence"),
    ("build_atoms", {"kv_block_size": 0}, "q_block_size is 4 and kv_block_size 0, expected 1 or more"),
    (
        "ragged_embed",
        {"input_ids": integers(0, 5, 2)},
        "input_ids has 5 at position 1, expected 0 to 4: rows of embedding_weight",
    ),
    ("ragged_embed", {"input_ids": ones(3)}, "input_ids is neither int32 nor int64, expected one"),
    (
        "ragged_embed",
        {"position_embedding_weight": ones(9, 3)},
        "position_embedding_weight has shape [9, 3], expected [9, 4]: [positions, channels]",
    ),
    (
        "ragged_embed",
        {"position_embedding_weight": ones(0, 4)},
        "position_embedding_weight has shape [0, ...], expected a position or more",
    ),
    (
        "ragged_embed",
        {"tokens_to_seq": integers(0)},
        "tokens_to_seq has shape [1], expected a number for each of the batch's 3 tokens",
    ),
    (
        "gather_for_logits",
        {"seq_metadata": integers(0, 0, 2, 0)[None]},
        "sequence 0 has no token, expected one or more: it has no last token",
    ),
    (
        "gather_for_logits",
        {"batch_metadata": integers(4, 1)},
        "batch_metadata has 4 tokens, expected 0 to 3, the rows of the tensors",
    ),
    ("top_k_gating", {"scores": poison(2, 1).half()}, "scores is not float32, expected float32"),
    ("top_k_gating", {"logits": ones(3, 3)}, "scores has shape [2, 1], expected [3, 1]: [tokens, top k]"),
    ("top_k_gating", {"batch_metadata": integers(3, 1)}, "batch_metadata has 3 tokens, expected 0 to 2"),
    (
        "moe_scatter",
        {"assignments": integers(0, 2)[:, None]},
        "assignments has 2 at position 1, expected -1 to 1: numbers of experts, or -1",
    ),
    (
        "moe_scatter",
        {"offsets": integers(0, 5)[:, None]},
        "offsets and expert_counts lead to row 6 at position 1, expected 0 to 1, the rows of moe_input",
    ),
    (
        "moe_scatter",
        {"expert_counts": integers(9, 9)},
        "offsets and expert_counts lead to row 9 at position 1, expected 0 to 1, the rows of moe_input",
    ),
    (
        "moe_gather",
        {"mapped_slots": integers(0, 2)[:, None]},
        "mapped_slots has 2 at position 1, expected -1 to 1: rows of moe_output, or -1",
    ),
    (
        "moe_gather",
        {"mapped_slots": integers(0, -2)[:, None]},
        "mapped_slots has -2 at position 1, expected -1 to 1: rows of moe_output, or -1",
    ),
    ("moe_gather", {"scores": ones(2, 1).half()}, "scores is not float32, expected float32"),
    ("top_k_gating", shared("offsets", "assignments"), SHARED.format("assignments", "offsets")),
    ("moe_scatter", shared("assignments", "mapped_slots"), SHARED.format("mapped_slots", "assignments")),
    ("moe_gather", shared("moe_output", "layer_output"), SHARED.format("layer_output", "moe_output")),
    (
        "ragged_embed",
        shared("embedding_weight", "embedded_tokens"),
        SHARED.format("embedded_tokens", "embedding_weight"),
    ),
    ("gather_for_logits", shared("all_acts", "final_token_acts"), SHARED.format("final_token_acts", "all_acts")),
    ("build_atoms", shared("seq_metadata", "atoms"), SHARED.format("atoms", "seq_metadata")),
    (
        "token_scatter_",
        shared("layer_activations", "all_activations"),
        SHARED.format("all_activations", "layer_activations"),
    ),
    (
        "kv_rotary_embeddings",
        {"q": poison(1, 32).expand(3, 32)},
        "q has strides (0, 1) for shape (3, 32), expected elements that do not overlap, since it is written: pass "
        ".contiguous() of it",
    ),
    (
        "attention",
        {"o": poison(1, 1, 3, 2, 8).expand(1, 2, 3, 2, 8)},
        "out has strides (48, 0, 16, 8, 1) for shape (1, 2, 3, 2, 8), expected elements that do not overlap, since it "
        "is written: pass .contiguous() of it",
    ),
]


@pytest.mark.parametrize(("function", "changes", "message"), WRONG)
def test_shapes_numbers_and_indexes_that_do_not_fit(function, changes, message):
    assert call(function, changes) == message


HIDDEN, MASK = ones(2, 8, 32), torch.zeros(2, 1, 1, 8)
STATES, LAYOUT = ones(1, 2, 32, 16), ones(2, 2, 2)
BLOCKS = ones(1, 8, 16, 16)


def layer(input, mask, dtype=None):
    return TransformerLayer(TransformerConfig(32, 4)).to(dtype)(input, mask)


def backward(**changes):
    """Calls DeepSpeed's function for gradients with some tensors changed, by DeepSpeed's names."""
    op, weights = host_op("TransformerBuilder"), list(TransformerLayer(TransformerConfig(32, 4)).parameters())
    weights = [weight.detach() for weight in weights]
    op.create_transformer_layer_fp32(3, 2, 32, 4, 128, 0.0, 0.0, EPS, 1, True, False, False, False, False, False)
    saved = op.forward_fp32(3, HIDDEN, MASK, *weights, True, True, False, False, False)
    given = {"grad_output": HIDDEN, **dict(zip(SAVED, saved, strict=True)), "input": HIDDEN, "mask": MASK} | changes
    op.backward_fp32(3, *given.values(), *weights)


def sparse(**masks):
    return sparse_attention(STATES, STATES, STATES, LAYOUT, 16, **masks)


def attend(**masks):
    return SparseSelfAttention(DenseSparsityConfig(2), max_seq_length=32)(STATES, STATES, STATES, **masks)


OF_LAYER = "expected one of torch.float32, torch.bfloat16, torch.float16, torch.float64: convert it with .float()"
FRONT_ENDS = [
    (lambda: layer(HIDDEN.int(), MASK, None), f"input is torch.int32, {OF_LAYER}"),
    (lambda: layer(HIDDEN, MASK.to("meta")), "input_mask is on meta, expected cpu, where input is"),
    (
        lambda: layer(HIDDEN.half(), MASK),
        "attn_qkvw is torch.float32 on cpu, expected torch.float16 on cpu, as input is",
    ),
    (
        lambda: layer(HIDDEN, MASK[..., :7]),
        "input_mask is torch.float32 of shape (2, 1, 1, 7), expected numbers that are added to scores of shape "
        "(2, 4, 8, 8), such as [2, 1, 1, 8]",
    ),
    (lambda: backward(grad_output=HIDDEN[:1]), "grad_output has shape (1, 8, 32), expected that of input, (2, 8, 32)"),
    (
        lambda: backward(qkv_tf=ones(3, 96)),
        "qkv_tf has 288 elements on cpu, expected 1536 on cpu: pass what the forward of this input has returned",
    ),
    (
        lambda: backward(ff1_inp=HIDDEN.to("meta")),
        "ff1_inp has 512 elements on meta, expected 512 on cpu: pass what the forward of this input has returned",
    ),
    (
        lambda: backward(mask=MASK[..., :7]),
        "input_mask is torch.float32 of shape (2, 1, 1, 7), expected numbers that are added to scores of shape "
        "(2, 4, 8, 8), such as [2, 1, 1, 8]",
    ),
    (
        lambda: sparse(key_padding_mask=ones(1, 31)),
        "key_padding_mask has shape (1, 31), expected (1, 32): the last 1 as the scores; sizes before them may be 1",
    ),
    (
        lambda: sparse(key_padding_mask=ones(1, 32).to("meta")),
        "key_padding_mask is on meta, expected cpu: move it with .to()",
    ),
    (
        lambda: sparse(attn_mask=ones(1, 32)),
        "attn_mask has shape (1, 32), expected (32, 32): the last 2 as the scores",
    ),
    (
        lambda: sparse(rpe=ones(3, 32, 32)),
        "rpe has shape (3, 32, 32), expected (2, 32, 32): the last 2 as the scores; sizes before them may be 1",
    ),
    (
        lambda: sparse_attention(STATES, STATES, STATES[0], LAYOUT, 16),
        "value has shape (2, 32, 16), expected [batch, heads, length, size]",
    ),
    (
        lambda: attend(key_padding_mask=ones(1, 31)),
        "key_padding_mask has shape (1, 31), expected (1, 32); there may be further dimensions of size 1",
    ),
    (
        lambda: attend(attn_mask=ones(31, 31)),
        "attn_mask has shape (31, 31), expected (32, 32); there may be further dimensions of size 1",
    ),
    (lambda: MatMul(LAYOUT, 0, "sdd"), "block is 0, expected 1 or more"),
    (
        lambda: MatMul(LAYOUT, 16, "dsd")(BLOCKS.int(), STATES.int()),
        "a is torch.int32, expected floating-point numbers: convert it with .float()",
    ),
    (lambda: Softmax(LAYOUT, 0), "block is 0, expected 1 or more"),
    (
        lambda: Softmax(LAYOUT, 16)(BLOCKS.int()),
        "x is torch.int32, expected floating-point numbers: convert it with .float()",
    ),
    (
        lambda: evoformer_attention(*[ones(1, 1, 2, 1, 8)] * 3, [ones(1, 1, 1, 1, 2)] * 3),
        "biases has 3 tensors, expected at most 2: add some of them up before",
    ),
    (
        lambda: FPQuantizer().selective_dequantize(ones(4, 516, dtype=torch.uint8), integers(4), (4, 512)),
        "indexes[0] is 4, expected a number from 0 to less than 4, the blocks in rows",
    ),
]


@pytest.mark.parametrize(("make", "message"), FRONT_ENDS)
def test_front_ends_reject_what_does_not_fit(make, message):
    with pytest.raises((RuntimeError, ValueError)) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"key_padding_mask": ones(1, 31)}, "key_padding_mask has shape (1, 31), expected (1, 32): the last 1"),
        ({"attn_mask": ones(31, 32)}, "attn_mask has shape (31, 32), expected (32, 32): the last 2"),
        ({"rpe": ones(1, 3, 32, 32)}, "rpe has shape (1, 3, 32, 32), expected (1, 2, 32, 32): the last 2"),
        ({"rpe": ones(32, 32).to("meta")}, "rpe is on meta, expected cpu: move it with .to()"),
    ],
)
def test_a_softmax_in_place_is_not_begun_with_masks_that_do_not_fit(masks, message):
    x = torch.full_like(BLOCKS, POISON)
    with pytest.raises(ValueError) as caught:
        Softmax(LAYOUT, 16)(x, **masks)
    assert str(caught.value).startswith(message) and (x == POISON).all()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: FPQuantizer("x"),
            "group_size is 'x', expected a whole number, at least 1",
        ),
        (lambda: FPQuantizer(0), "group_size is 0, expected a whole number, at least 1"),
        (
            lambda: FPQuantizer(6, 6),
            "group_size is 6, expected a multiple of 4: the codes of a group, of 6 bits each, are whole bytes",
        ),
        (lambda: FPQuantizer(512, "8"), "q_bits is '8', expected 12, 8, 6 or 4"),
        (lambda: FPQuantizer(512, 8, 4), "q_mantissa_bits is 4, expected 3 or 2 for 8 bits"),
        (lambda: DenseSparsityConfig("2"), "num_heads is '2', expected a whole number, at least 1"),
        (lambda: DenseSparsityConfig(2, 0), "block is 0, expected a whole number, at least 1"),
        (lambda: SparseSelfAttention(attn_mask_mode="sum"), "attn_mask_mode is 'sum', expected 'add' or 'mul'"),
        (lambda: SparseSelfAttention("dense"), "sparsity_config is 'dense', expected a SparsityConfig"),
    ],
)
def test_a_constructor_refuses_what_its_calls_would_refuse(make, text):
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    assert str(caught.value).startswith(text)
