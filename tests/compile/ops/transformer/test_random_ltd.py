"""Random layerwise token dropping beyond its contract: sequences first, other lengths and dtypes, masks, errors."""

import pytest
import torch

from opforge.builders.cpu.transformer.random_ltd import RandomLTDBuilder
from opforge.ops import host_op, random_ltd
from opforge.ops.transformer import reference

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]
SIZES = (torch.bool, torch.bfloat16, torch.float32, torch.float64)
"""A dtype of each size: elements are copied by their size alone."""
LENGTHS = ((1, 0), (1, 1), (17, 15), (4097, 17), (64, 64))


@pytest.fixture(scope="module")
def op():
    return RandomLTDBuilder().load()


def chosen(tokens, retained, *shape, seed=0):
    """Returns sorted numbers of tokens, int32 [*shape, retained], without repetitions in a row."""
    random = torch.Generator().manual_seed(seed)
    rows = [torch.randperm(tokens, generator=random)[:retained] for _ in range(torch.Size(shape).numel())]
    return torch.stack(rows).reshape(*shape, retained).sort(-1).values.to(torch.int32)


@pytest.mark.parametrize(
    ("batch_first", "tokens", "retained"),
    [(True, 1, 0), (True, 64, 64), (False, 1, 0), (False, 17, 15), (False, 4097, 17)],
)
def test_tokens_are_gathered_and_put_back(op, batch_first, tokens, retained):
    """The contract has half of the tokens of sequences, in dtypes of 16 and 32 bits."""
    dtype = torch.float64
    activations = torch.randn(3, tokens, 33).to(dtype)
    activations = activations if batch_first else activations.transpose(0, 1)
    indices = chosen(tokens, retained, 3)
    part = op.token_gather(activations, indices, batch_first)
    assert torch.equal(part, reference.token_gather(activations, indices, batch_first))
    whole = torch.randn(3, tokens, 33).to(dtype) if batch_first else torch.randn(tokens, 3, 33).to(dtype)
    expected = reference.token_scatter(whole, part, indices, batch_first)
    assert op.token_scatter_(whole, part, indices, batch_first) is whole
    assert torch.equal(whole, expected)


def test_long_tokens_are_copied_in_slices(op):
    activations = torch.randn(2, 9, 5000)
    indices = chosen(9, 4, 2)
    assert torch.equal(op.token_gather(activations, indices, True), reference.token_gather(activations, indices, True))


def test_of_equal_indexes_the_last_one_counts(op):
    part = torch.arange(400.0).view(1, 400, 1).expand(1, 400, 3000).contiguous()
    whole = op.token_scatter_(torch.zeros(1, 2, 3000), part, torch.ones(1, 400, dtype=torch.int32), True)
    assert bool((whole[0, 1] == 399).all()) and bool((whole[0, 0] == 0).all())


@pytest.mark.parametrize(("tokens", "retained"), [*LENGTHS, (1 << 20, 3)])
def test_numbers_of_tokens_are_sorted_in_place(op, tokens, retained):
    random = torch.Generator().manual_seed(3)
    numbers = [torch.randperm(tokens, generator=random)[:retained] for _ in range(6)]
    ids = torch.stack(numbers).view(2, 3, retained).to(torch.int32)
    expected = ids.sort(-1).values
    assert op.token_sort_(ids, tokens) is ids
    assert torch.equal(ids, expected)


def test_numbers_that_repeat_are_kept(op):
    ids = torch.tensor([[[5, 2, 9, 2, 0, 9, 9]]], dtype=torch.int32)
    assert op.token_sort_(ids, 10).flatten().tolist() == [0, 2, 2, 5, 9, 9, 9]


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize(("tokens", "retained"), [(1, 0), (1, 1), (17, 15), (33, 33)])
def test_each_layer_has_its_own_rows_and_columns_of_a_mask(op, dtype, tokens, retained):
    mask = (torch.randn(3, 1, tokens, tokens) * 2).to(dtype)
    indices = chosen(tokens, retained, 2, 3)
    out = op.mask_gather_bert(mask, indices)
    assert out.shape == (2, 3, 1, retained, retained)
    for layer, retained_tokens in zip(out, indices.long(), strict=True):
        expected = [mask[number][:, row][:, :, row] for number, row in enumerate(retained_tokens)]
        assert torch.equal(layer, torch.stack(expected))


def test_the_first_tokens_of_a_causal_mask_are_copied(op):
    mask = torch.randn(2, 1, 17, 17)
    out = op.mask_gather_gpt(mask, 15)
    assert torch.equal(out, mask[:, :, :15, :15]) and out.is_contiguous()
    assert op.mask_gather_gpt(mask, 0).shape == (2, 1, 0, 0)


@pytest.mark.parametrize("batch_first", [True, False])
def test_gradients(op, batch_first):
    whole = torch.randn(2, 6, 3, dtype=torch.float64)
    whole = (whole if batch_first else whole.transpose(0, 1).contiguous()).requires_grad_()
    indices = chosen(6, 4, 2)
    part = random_ltd.gather_tokens(whole, indices, batch_first).detach().requires_grad_()

    def gather(x):
        return random_ltd.gather_tokens(x, indices, batch_first).square()

    def scatter(x, y):
        return random_ltd.scatter_tokens(x, y, indices, batch_first).square()

    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(gather, (whole,)) and check(scatter, (whole, part))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch's own tracing
def test_torch_compile_may_be_the_first_to_load_the_op(monkeypatch):
    monkeypatch.setattr(host_op, "loaded", {})
    x, numbers = torch.randn(1, 4, 3, requires_grad=True), torch.tensor([[0, 2]]).int()

    def doubled(x):
        return random_ltd.scatter_tokens(x, 2 * random_ltd.gather_tokens(x, numbers), numbers)

    traced = torch.compile(doubled, fullgraph=True, backend="aot_eager")
    assert torch.equal(traced(x), doubled(x))
    (gradient,) = torch.autograd.grad(traced(x).sum(), x)
    assert gradient[0, :, 0].tolist() == [2, 1, 2, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda op: op.token_gather(torch.ones(1, 4, 2), torch.tensor([[0, 4]], dtype=torch.int32), True),
            "sorted_indices has 4 at position 1, expected 0 to 3: numbers of tokens",
        ),
        (
            lambda op: op.token_scatter_(
                torch.ones(1, 4, 2), torch.ones(1, 1, 2), torch.tensor([[-1]], dtype=torch.int32), True
            ),
            "sorted_indices has -1 at position 0, expected 0 to 3: numbers of tokens",
        ),
        (
            lambda op: op.token_gather(torch.ones(1, 4, 2), torch.zeros(1, 2, dtype=torch.int64), True),
            r"sorted_indices is int64, expected int32: convert it with .to\(torch.int32\)",
        ),
        (
            lambda op: op.token_gather(torch.ones(2, 4, 2), torch.zeros(3, 2, dtype=torch.int32), True),
            r"sorted_indices has shape \[3, 2\], expected \[2, 2\]: one row for each sequence of the batch",
        ),
        (
            lambda op: op.token_scatter_(
                torch.ones(2, 4, 2), torch.ones(2, 3, 2), torch.zeros(2, 2, dtype=torch.int32), True
            ),
            r"layer_activations has shape \[2, 3, 2\], expected \[2, 2, 2\]: \[batch, retained tokens, channels\]",
        ),
        (
            lambda op: op.token_scatter_(
                torch.ones(1, 4, 2), torch.ones(1, 1, 2).half(), torch.zeros(1, 1, dtype=torch.int32), True
            ),
            r"layer_activations and all_activations differ in dtype, expected one: convert one of them with .to\(\)",
        ),
        (
            lambda op: op.token_scatter_(
                torch.ones(1, 1, 2).expand(1, 4, 2), torch.ones(1, 1, 2), torch.zeros(1, 1, dtype=torch.int32), True
            ),
            r"all_activations is not contiguous: pass .contiguous\(\) of it",
        ),
        (
            lambda op: op.token_sort_(torch.tensor([[[3, 10]]], dtype=torch.int32), 10),
            "unsorted_token_ids has 10 at position 1, expected 0 to 9: numbers of original_tokens tokens",
        ),
        (
            lambda op: op.mask_gather_bert(torch.ones(1, 1, 4, 3), torch.zeros(1, 1, 1, dtype=torch.int32)),
            r"dense_mask has shape \[1, 1, 4, 3\], expected \[1, 1, 3, 3\]: \[batch, 1, tokens, tokens\]",
        ),
        (
            lambda op: op.mask_gather_bert(torch.ones(1, 1, 4, 4), torch.zeros(1, 1, dtype=torch.int32)),
            r"sorted_indices has shape \(1, 1\), expected \[layers, batch, retained tokens\]",
        ),
        (
            lambda op: op.token_gather(torch.ones(4, 2), torch.zeros(1, 1, dtype=torch.int32), False),
            r"activations has shape \(4, 2\) and sorted_indices \(1, 1\), expected \[tokens, batch, channels\] and "
            r"\[batch, retained tokens\]",
        ),
        (
            lambda op: op.token_gather(torch.ones(1, 4, 2, device="meta"), torch.zeros(1, 1, dtype=torch.int32), True),
            r"tensors are on cpu and meta, expected one device: move them with .to\(\)",
        ),
        (
            lambda op: op.mask_gather_gpt(torch.ones(1, 1, 4, 4), 5),
            r"truncated_seq_len is 5 and dense_mask has shape \(1, 1, 4, 4\), expected a mask",
        ),
    ],
)
def test_errors_state_what_was_expected(op, call, message):
    with pytest.raises((RuntimeError, ValueError), match=message):
        call(op)


def test_nothing_is_written_before_all_is_checked(op):
    whole = torch.zeros(1, 4, 2)
    with pytest.raises(RuntimeError, match="at position 1"):
        op.token_scatter_(whole, torch.ones(1, 2, 2), torch.tensor([[0, 9]], dtype=torch.int32), True)
    assert not whole.any()
