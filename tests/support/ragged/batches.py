"""Ragged batches for tests: sequences with the tokens that they had before, and pages of a cache for each."""

from __future__ import annotations

import torch


class RaggedBatch:
    """Sequences (tokens in the batch, tokens before), described as DeepSpeed does it."""

    def __init__(self, sequences, block=4, padding=0, seed=0):
        random = torch.Generator().manual_seed(seed)
        self.sequences, self.block = sequences, block
        self.tokens = sum(count for count, _ in sequences)
        self.metadata = torch.tensor([self.tokens, len(sequences)], dtype=torch.int32)
        self.states = torch.zeros(len(sequences) + 2, 4, dtype=torch.int32)
        self.owners = torch.zeros(self.tokens + padding, dtype=torch.int32)
        counts = [-(-(count + seen) // block) for count, seen in sequences]
        self.pages = sum(counts) + 1
        free = torch.randperm(self.pages, generator=random).to(torch.int32)
        self.lists, start, page = [], 0, 0
        for number, ((count, seen), pages) in enumerate(zip(sequences, counts, strict=True)):
            self.states[number, :3] = torch.tensor([start, count, seen])
            self.owners[start : start + count] = number
            self.lists.append(free[page : page + pages].clone())
            start, page = start + count, page + pages
        self.pointers = torch.zeros(len(sequences) + 2, dtype=torch.int64)
        self.pointers[: len(sequences)] = torch.tensor([list.data_ptr() for list in self.lists], dtype=torch.int64)

    @property
    def described(self):
        """The last arguments of most functions."""
        return self.metadata, self.states, self.owners, self.pointers

    def places(self):
        """Yields each token of the batch with its sequence, position, page and slot of the page."""
        start = 0
        for number, (count, seen) in enumerate(self.sequences):
            for token in range(count):
                position = seen + token
                yield (
                    start + token,
                    number,
                    position,
                    int(self.lists[number][position // self.block]),
                    (position % self.block),
                )
            start += count
