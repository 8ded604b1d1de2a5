"""Ragged batches: the cache of keys and values, experts, embeddings and last tokens.

A batch is described as DeepSpeed does it: `head` holds the numbers of tokens and of sequences, `states` four int32 of
each sequence (its first token, its tokens, and those before the batch), `owners` each token's sequence, `pointers` the
address of each sequence's list of pages. All are on the device, so nothing can be refused: what is out of range reads
and writes nothing outside of the tensors. An embedding that does not exist is NaN.
"""

import triton
import triton.language as tl

UNASSIGNED = tl.constexpr(-1)
LOWEST = tl.constexpr(-2147483648)


@triton.jit
def _cosine_and_sine(angle):
    """Returns both of angles, in radians, up to a hundred thousand. The GPU's own functions are wrong for large angles.

    The angle is reduced by multiples of pi / 2 (in three parts, of which the first two have few bits, so that their
    products are exact) and the rest by the minimax polynomials of the Cephes library, by S. Moshier.
    """
    quarters = tl.floor(angle * 0.6366197723675814 + 0.5)
    x = angle - quarters * 1.5703125
    x = x - quarters * 4.8375129699707031e-4
    x = x - quarters * 7.5497899548918822e-8
    square = x * x
    sine = ((-1.9515295891e-4 * square + 8.3321608736e-3) * square - 1.6666654611e-1) * square * x + x
    cosine = (2.443315711809948e-5 * square - 1.388731625493765e-3) * square + 4.166664568298827e-2
    cosine = cosine * square * square - 0.5 * square + 1.0
    turn = quarters.to(tl.int32)
    first = tl.where((turn & 1) == 0, cosine, sine)
    second = tl.where((turn & 1) == 0, sine, cosine)
    return tl.where(((turn + 1) & 2) == 0, first, -first), tl.where((turn & 2) == 0, second, -second)


@triton.jit
def _rotate(source, target, frequencies, position, heads, size, half, BLOCK: tl.constexpr):
    """Writes a token's heads, rotated. A thread reads both numbers of a pair before it writes them, also in place."""
    divisor = tl.maximum(half, 1)
    for start in range(0, heads * half, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        here = pair < heads * half
        lane = pair % divisor
        at = pair // divisor * size + lane
        frequency = tl.load(frequencies + lane, mask=here, other=0.0)
        cosine, sine = _cosine_and_sine(frequency * position.to(tl.float32))
        x = tl.load(source + at, mask=here, other=0.0).to(tl.float32)
        y = tl.load(source + at + half, mask=here, other=0.0).to(tl.float32)
        tl.store(target + at, x * cosine - y * sine, mask=here)
        tl.store(target + at + half, y * cosine + x * sine, mask=here)


@triton.jit
def fill_cache(
    cache, q, k, v, frequencies, head, states, owners, pointers,
    pages, block, heads, size, q_heads, half, q_row, k_row, v_row,
    ROTARY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copies a token's key and value to its place in the cache; before, its query and key are rotated if ROTARY."""
    token = tl.program_id(0)
    owner = tl.load(owners + token)
    exists = (token < tl.load(head)) & (owner >= 0) & (owner < tl.load(head + 1))
    if exists:
        state = states + owner.to(tl.int64) * 4
        position = tl.load(state + 2) + token - tl.load(state)
        pages_of = tl.load(pointers + owner).to(tl.pointer_type(tl.int32))
        page = tl.load(pages_of + position // block, mask=position >= 0, other=-1)
        if (page >= 0) & (page < pages):
            key = cache + (page.to(tl.int64) * block + position % block) * 2 * heads * size
            k += token.to(tl.int64) * k_row
            v += token.to(tl.int64) * v_row
            if ROTARY:
                _rotate(k, key, frequencies, position, heads, size, half, BLOCK)
                rest = tl.maximum(size - 2 * half, 1)
                for start in range(0, heads * (size - 2 * half), BLOCK):
                    number = start + tl.arange(0, BLOCK)
                    here = number < heads * (size - 2 * half)
                    at = number // rest * size + 2 * half + number % rest
                    tl.store(key + at, tl.load(k + at, mask=here), mask=here)
                row = q + token.to(tl.int64) * q_row
                _rotate(row, row, frequencies, position, q_heads, size, half, BLOCK)
            for start in range(0, heads * size, BLOCK):
                at = start + tl.arange(0, BLOCK)
                here = at < heads * size
                if not ROTARY:
                    tl.store(key + at, tl.load(k + at, mask=here), mask=here)
                tl.store(key + heads * size + at, tl.load(v + at, mask=here), mask=here)


@triton.jit
def embed(
    out, ids, table, places, head, states, owners, words, positions, columns, shift,
    PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the embedding of a token's word, plus that of its position if PLACES. One program per token and block."""
    token = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = (at < columns) & (token < tl.load(head))
    word = tl.load(ids + token).to(tl.int64)
    value = tl.load(table + word * columns + at, mask=here & (word >= 0) & (word < words), other=float("nan"))
    if PLACES:
        owner = tl.load(owners + token)
        known = here & (owner >= 0) & (owner < tl.load(head + 1))
        state = states + tl.where((owner >= 0) & (owner < tl.load(head + 1)), owner, 0).to(tl.int64) * 4
        position = tl.load(state + 2) + token - tl.load(state) + shift
        row = tl.minimum(tl.maximum(position, 0), positions - 1).to(tl.int64)
        place = tl.load(places + row * columns + at, mask=known, other=float("nan"))
        value = (value.to(tl.float32) + place.to(tl.float32)).to(out.dtype.element_ty)
    tl.store(out + token.to(tl.int64) * columns + at, value, mask=here)


@triton.jit
def gather_last(out, tokens_of, head, states, rows, columns, BLOCK: tl.constexpr):
    """Copies the last token of a sequence, as bits. Of a sequence without a token all bits are set."""
    sequence = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = (at < columns) & (sequence < tl.load(head + 1))
    known = sequence < tl.load(head + 1)
    state = states + sequence.to(tl.int64) * 4
    first = tl.load(state, mask=known, other=0)
    count = tl.load(state + 1, mask=known, other=0)
    last = first + count - 1
    inside = here & (count > 0) & (last >= 0) & (last < rows)
    bits = tl.load(tokens_of + last.to(tl.int64) * columns + at, mask=inside, other=-1)
    tl.store(out + sequence.to(tl.int64) * columns + at, bits, mask=here)


@triton.jit
def choose_experts(scores, assignments, offsets, logits, head, count, top, EXPERTS: tl.constexpr):
    """Writes the `top` experts of a token, of equal logits the first ones, and their softmax. NaN is chosen last."""
    token = tl.program_id(0)
    lane = tl.arange(0, EXPERTS)
    row = token.to(tl.int64) * top
    if token < tl.load(head):
        value = tl.load(logits + token.to(tl.int64) * count + lane, mask=lane < count, other=float("-inf"))
        value = value.to(tl.float32)
        # As integers in the order of the numbers, so that what is used already is below -inf.
        bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
        order = bits ^ (bits >> 31 & 0x7FFFFFFF)
        order = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, LOWEST + 1, order)  # NaN
        order = tl.where(lane < count, order, LOWEST)
        best = float("-inf")
        total = 0.0
        for number in range(top):
            highest = tl.max(order, 0)
            expert = tl.min(tl.where(order == highest, lane, EXPERTS), 0)
            chosen = tl.sum(tl.where(lane == expert, value, 0.0), 0)
            if number == 0:
                best = chosen
                total = tl.sum(tl.where(lane < count, tl.exp(value - best), 0.0), 0)
            tl.store(scores + row + number, tl.exp(chosen - best) / total)
            tl.store(assignments + row + number, expert)
            order = tl.where(lane == expert, LOWEST, order)
    else:
        for number in range(top):
            tl.store(assignments + row + number, UNASSIGNED)
            tl.store(offsets + row + number, UNASSIGNED)


@triton.jit
def count_experts(counts, assignments, offsets, total, BLOCK: tl.constexpr):
    """Numbers the tokens of an expert in their order, from its count on, and adds them to it. One program per expert.

    No atomics: the same tokens have the same places each time.
    """
    expert = tl.program_id(0)
    before = tl.load(counts + expert)
    for start in range(0, total, BLOCK):
        at = start + tl.arange(0, BLOCK)
        chosen = tl.load(assignments + at, mask=at < total, other=-1) == expert
        ones = chosen.to(tl.int32)
        tl.store(offsets + at, before + tl.cumsum(ones, 0) - ones, mask=chosen)
        before += tl.sum(ones, 0)
    tl.store(counts + expert, before)


@triton.jit
def scatter_to_experts(
    out, sums, slots, activations, counts, assignments, offsets, experts, top, columns, BLOCK: tl.constexpr
):
    """Copies a token, as bits, to the row of its expert. One program per choice of an expert, and block of the token.

    It writes the row's number to `slots`; the first program writes the sums of the counts.
    """
    choice = tl.program_id(0)
    rows = tl.num_programs(0)
    lane = tl.arange(0, BLOCK)
    expert = tl.load(assignments + choice)
    assigned = (expert >= 0) & (expert < experts)
    before = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, tl.where(assigned, expert, 0), BLOCK):
        before += tl.load(counts + start + lane, mask=start + lane < expert, other=0).to(tl.int64)
    place = tl.sum(before, 0) + tl.load(offsets + choice)
    exists = assigned & (place >= 0) & (place < rows)
    if tl.program_id(1) == 0:
        tl.store(slots + choice, tl.where(exists, place, UNASSIGNED).to(tl.int32))
        if choice == 0:
            sum = tl.zeros((1,), tl.int64)
            for start in range(0, experts, BLOCK):
                count = tl.load(counts + start + lane, mask=start + lane < experts, other=0).to(tl.int64)
                tl.store(sums + start + lane, sum + tl.cumsum(count, 0), mask=start + lane < experts)
                sum += tl.sum(count, 0)
    at = tl.program_id(1) * BLOCK + lane
    here = (at < columns) & exists
    bits = tl.load(activations + (choice // top).to(tl.int64) * columns + at, mask=here)
    tl.store(out + place * columns + at, bits, mask=here)


@triton.jit
def gather_from_experts(
    out, rows, scores, slots, counts, experts, top, columns, count, normalizes, BLOCK: tl.constexpr
):
    """Adds up the rows of a token's experts, weighted by its scores. One program per token and block of it.

    A token without an expert stays as it is. The first program sets the counts to 0, for their next use.
    """
    token = tl.program_id(0)
    first = token.to(tl.int64) * top
    lane = tl.arange(0, BLOCK)
    at = tl.program_id(1) * BLOCK + lane
    if (token == 0) & (tl.program_id(1) == 0):
        for start in range(0, experts, BLOCK):
            tl.store(counts + start + lane, tl.zeros((BLOCK,), tl.int32), mask=start + lane < experts)
    sum = 0.0
    for number in range(top):
        sum += tl.load(scores + first + number)
    divisor = tl.where((normalizes != 0) & (sum > 0.0), sum, 1.0)
    total = tl.zeros((BLOCK,), tl.float32)
    found = 0
    for number in range(top):
        slot = tl.load(slots + first + number)
        exists = (slot >= 0) & (slot < count)
        weight = tl.load(scores + first + number) / divisor
        row = tl.load(rows + slot.to(tl.int64) * columns + at, mask=(at < columns) & exists, other=0.0)
        total += tl.where(exists, row.to(tl.float32) * weight, 0.0)
        found += exists.to(tl.int32)
    tl.store(out + token.to(tl.int64) * columns + at, total, mask=(at < columns) & (found > 0))
