"""A small causal transformer over characters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, LENGTH = 128, 4, 2, 64


class Block(nn.Module):
    """Attention and a two-layer perceptron, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the block's output. Input and output are [batch, length, width]."""
        batch, length, _ = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.before_mlp(x))


class CharTransformer(nn.Module):
    """Predicts the next character at each position."""

    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.character, self.position = nn.Embedding(alphabet, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, alphabet)
        for embedding in (self.character, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, codes: Tensor) -> Tensor:
        """Returns logits [batch, length, alphabet] for codes [batch, length]."""
        x = self.character(codes) + self.position(torch.arange(codes.shape[1]))
        return self.head(self.norm(self.blocks(x)))

    def loss(self, codes: Tensor, following: Tensor) -> Tensor:
        """Returns the mean cross entropy, in nats a character."""
        return functional.cross_entropy(self(codes).flatten(0, 1), following.flatten())
