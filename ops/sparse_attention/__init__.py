"""Block-sparse attention, with the names and arguments of `deepspeed.ops.sparse_attention` of DeepSpeed 0.19.6.

Each block of queries sees the blocks of keys that a layout lists. A layout comes from a `SparsityConfig`.
docs/attention.md describes them. Importing this package imports nothing else: a name is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.foundation import lazy

if TYPE_CHECKING:
    from .bert import BertSparseSelfAttention, SparseAttentionUtils
    from .configs import DenseSparsityConfig, FixedSparsityConfig, SparsityConfig, VariableSparsityConfig
    from .products import MatMul
    from .self_attention import SparseSelfAttention, sparse_attention
    from .sliding_configs import BigBirdSparsityConfig, BSLongformerSparsityConfig, LocalSlidingWindowSparsityConfig
    from .softmaxes import Softmax

_MODULES = {
    "BSLongformerSparsityConfig": "sliding_configs",
    "BertSparseSelfAttention": "bert",
    "BigBirdSparsityConfig": "sliding_configs",
    "DenseSparsityConfig": "configs",
    "FixedSparsityConfig": "configs",
    "LocalSlidingWindowSparsityConfig": "sliding_configs",
    "MatMul": "products",
    "Softmax": "softmaxes",
    "SparseAttentionUtils": "bert",
    "SparseSelfAttention": "self_attention",
    "SparsityConfig": "configs",
    "VariableSparsityConfig": "configs",
    "sparse_attention": "self_attention",
}
__all__ = [
    "BSLongformerSparsityConfig",
    "BertSparseSelfAttention",
    "BigBirdSparsityConfig",
    "DenseSparsityConfig",
    "FixedSparsityConfig",
    "LocalSlidingWindowSparsityConfig",
    "MatMul",
    "Softmax",
    "SparseAttentionUtils",
    "SparseSelfAttention",
    "SparsityConfig",
    "VariableSparsityConfig",
    "sparse_attention",
]
__getattr__, __dir__ = lazy.names(__name__, _MODULES)
