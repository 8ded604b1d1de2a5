"""Attention over tiles of queries and keys: softmax(q k^T * scale + biases) v, and its gradients.

The matrix of scores is never in memory, sums are in float32, and each number is summed up by one program in one order.
A query that sees no key, or whose scores are all -inf, has the result 0 and a log-sum of -inf.

Tensors are [outer, inner, length, heads, size]. `size` and all strides are multiples of 16: the compiler then copies
rows asynchronously. `q` has strides of its own (`q_outer`, ...), `k` and `v` share theirs, and `out`, `dout` and all
gradients have no gaps. Log-sums are [outer, inner, heads, 2 * length]: behind the logarithms is what float32 cannot
hold of them. There are BIASES biases. A bias broadcasts to the scores by strides of 0, and its rows are readable up to
the next multiple of 16 keys.

Scores are natural: in base 2, the lowest number of bfloat16 in a mask would overflow to -inf.

If BLOCKS, a block of `block` queries sees the blocks of keys of a list: that of block r of head h is members[lists[n]]
to members[lists[n + 1] - 1] with n = h * blocks + r. `backward_keys` has lists of the queries that see a block of keys.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _place(number, heads, inner):
    """Returns outer, inner and head of the matrix of scores with this number."""
    rest = number // heads
    return (rest // inner).to(tl.int64), (rest % inner).to(tl.int64), (number % heads).to(tl.int64)


@triton.jit
def _program(count, heads, inner, OWN: tl.constexpr):
    """Returns the first query or key of this program, and the number, outer, inner and head of its matrix of scores."""
    tiles = tl.cdiv(count, OWN)
    number = tl.program_id(0) // tiles
    o, i, h = _place(number, heads, inner)
    return tl.program_id(0) % tiles * OWN, number, o, i, h


@triton.jit
def _head(base, o, i, h, outer, inner, head):
    """Returns where a head's rows, or a matrix of a bias, begin in a tensor of these strides."""
    return base + o * outer + i * inner + h * head


@triton.jit
def _packed(o, i, h, length, inner, heads, size):
    """Returns where a head's rows begin in a tensor without gaps, and their stride."""
    return (((o * inner + i) * length) * heads + h) * size, (heads * size).to(tl.int64)


@triton.jit
def _rows(base, start, stride, count, size, WHOLE: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Returns ROWS rows of a head; zeros behind the last column, and behind the last row unless all exist (WHOLE)."""
    row, column = start + tl.arange(0, ROWS), tl.arange(0, SIZE)
    inside = (column < size)[None, :]
    if not WHOLE:
        inside = (row < count)[:, None] & inside
    return tl.load(base + row.to(tl.int64)[:, None] * stride + column[None, :], mask=inside, other=0.0)


@triton.jit
def _store_rows(base, start, stride, count, size, values, ROWS: tl.constexpr, SIZE: tl.constexpr):
    row, column = start + tl.arange(0, ROWS), tl.arange(0, SIZE)
    inside = (row < count)[:, None] & (column < size)[None, :]
    rounded = values.to(base.dtype.element_ty)
    tl.store(base + row.to(tl.int64)[:, None] * stride + column[None, :], rounded, mask=inside)


@triton.jit
def _bias(base, stride, query, key, queries, keys, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Returns the tile of a bias at this query and key; 0 behind the last query and the padded last key."""
    row, column = query + tl.arange(0, ROWS), key + tl.arange(0, KEYS)
    # With the exact number of keys as the mask each number would be a load of its own.
    padded = tl.multiple_of((keys + 15) // 16 * 16, 16)
    inside = (row < queries)[:, None] & (column < padded)[None, :]
    return tl.load(base + row.to(tl.int64)[:, None] * stride + column[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _visible(scores, query, key, keys, causal, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Returns scores [ROWS, KEYS] with -inf for the keys that a query does not see."""
    rows = query + tl.arange(0, ROWS)
    last = tl.where(causal != 0, tl.minimum(rows, keys - 1), keys - 1)
    return tl.where((key + tl.arange(0, KEYS))[None, :] <= last[:, None], scores, float("-inf"))


@triton.jit
def _scores(
    rows, block_rows, scale, bias0, bias1, bias2, b0_query, b1_query, b2_query,
    query, key, queries, keys, causal,
    WHOLE: tl.constexpr, BIASES: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Returns the scores of a tile with biases; -inf for the keys that a query does not see, if not all are (WHOLE)."""
    scores = tl.dot(rows, tl.trans(block_rows), input_precision="ieee") * scale
    if BIASES > 0:
        scores += _bias(bias0, b0_query, query, key, queries, keys, ROWS, KEYS)
    if BIASES > 1:
        scores += _bias(bias1, b1_query, query, key, queries, keys, ROWS, KEYS)
    if BIASES > 2:
        scores += _bias(bias2, b2_query, query, key, queries, keys, ROWS, KEYS)
    if not WHOLE:
        scores = _visible(scores, query, key, keys, causal, ROWS, KEYS)
    return scores


@triton.jit
def _biases_of(
    bias0, bias1, bias2, o, i, h, b0_outer, b0_inner, b0_head, b1_outer, b1_inner, b1_head, b2_outer, b2_inner, b2_head,
    BIASES: tl.constexpr,
):  # fmt: skip
    """Returns where the matrices of the biases begin."""
    if BIASES > 0:
        bias0 = _head(bias0, o, i, h, b0_outer, b0_inner, b0_head)
    if BIASES > 1:
        bias1 = _head(bias1, o, i, h, b1_outer, b1_inner, b1_head)
    if BIASES > 2:
        bias2 = _head(bias2, o, i, h, b2_outer, b2_inner, b2_head)
    return bias0, bias1, bias2


@triton.jit
def _list(lists, row, block, BLOCKS: tl.constexpr, STEP: tl.constexpr, otherwise):
    """Returns where a row's list begins, and its number of tiles of STEP; `otherwise` tiles without lists."""
    first = 0
    count = otherwise
    if BLOCKS:
        first = tl.load(lists + row)
        count = (tl.load(lists + row + 1) - first) * (block // STEP)
    return first, count


@triton.jit
def _key_list(
    lists, h, query, queries, keys, block, causal,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Returns where the list of the keys that ROWS queries see begins, and its number of tiles of KEYS."""
    seen = tl.where(causal != 0, tl.minimum(query + ROWS, keys), keys)
    row = h * (queries // block) + query // block
    return _list(lists, row, block, BLOCKS, KEYS, tl.cdiv(seen, KEYS))


@triton.jit
def _member(members, first, step, block, BLOCKS: tl.constexpr, STEP: tl.constexpr):
    """Returns where the tile of this step begins."""
    start = step * STEP
    if BLOCKS:
        tiles = block // STEP
        start = tl.load(members + first + step // tiles) * block + step % tiles * STEP
    return start


@triton.jit
def _softmax_step(scores, highest, weight, sums, values):
    """Returns each row's highest score, weight and weighted sum of values, with one more tile of scores."""
    new = tl.maximum(highest, tl.max(scores, 1))
    shift = tl.where(new == float("-inf"), 0.0, new)  # -inf - -inf would be NaN
    before = tl.exp2((highest - shift) * LOG2E)
    shares = tl.exp2((scores - shift[:, None]) * LOG2E)
    weight = weight * before + tl.sum(shares, 1)
    sums = tl.dot(shares.to(values.dtype), values, sums * before[:, None], input_precision="ieee")
    return new, weight, sums


@triton.jit
def _quotient(sums, weight):
    return tl.where((weight == 0.0)[:, None], 0.0, sums / weight[:, None])


@triton.jit
def _whole_steps(query, keys, causal, count, BLOCKS: tl.constexpr, KEYS: tl.constexpr):
    """Returns how many tiles of keys, from the first on, all queries of a tile see entirely."""
    seen = count if BLOCKS else keys // KEYS
    return tl.where(causal != 0, 0 if BLOCKS else tl.minimum((query + 1) // KEYS, seen), seen)


@triton.jit
def _attend(
    begin, end, highest, weight, sums, rows, k, v, bias0, bias1, bias2, members, first,
    query, queries, keys, size, block, causal, scale, k_row, b0_query, b1_query, b2_query,
    WHOLE: tl.constexpr, BIASES: tl.constexpr, BLOCKS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Returns highest, weight and sums with the tiles of keys from `begin` to `end`."""
    for step in range(begin, end):
        key = _member(members, first, step, block, BLOCKS, KEYS)
        block_rows = _rows(k, key, k_row, keys, size, WHOLE, KEYS, SIZE)
        values = _rows(v, key, k_row, keys, size, WHOLE, KEYS, SIZE)
        scores = _scores(
            rows, block_rows, scale, bias0, bias1, bias2, b0_query, b1_query, b2_query,
            query, key, queries, keys, causal, WHOLE, BIASES, ROWS, KEYS,
        )  # fmt: skip
        highest, weight, sums = _softmax_step(scores, highest, weight, sums, values)
    return highest, weight, sums


@triton.jit
def forward(
    q, k, v, out, log_sums,
    bias0, bias1, bias2, lists, members,
    outer, heads, inner, queries, keys, size, block, causal, scale,
    q_outer, q_inner, q_row, q_head, k_outer, k_inner, k_row, k_head,
    b0_outer, b0_inner, b0_head, b0_query, b1_outer, b1_inner, b1_head, b1_query,
    b2_outer, b2_inner, b2_head, b2_query,
    BIASES: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Writes `out` and the log-sums. A program has ROWS queries of a head, and reads KEYS keys at a time."""
    query, number, o, i, h = _program(queries, heads, inner, ROWS)
    rows = _rows(_head(q, o, i, h, q_outer, q_inner, q_head), query, q_row, queries, size, False, ROWS, SIZE)
    k = _head(k, o, i, h, k_outer, k_inner, k_head)
    v = _head(v, o, i, h, k_outer, k_inner, k_head)
    bias0, bias1, bias2 = _biases_of(
        bias0, bias1, bias2, o, i, h,
        b0_outer, b0_inner, b0_head, b1_outer, b1_inner, b1_head, b2_outer, b2_inner, b2_head, BIASES,
    )  # fmt: skip
    first, count = _key_list(lists, h, query, queries, keys, block, causal, BLOCKS, ROWS, KEYS)
    whole = _whole_steps(query, keys, causal, count, BLOCKS, KEYS)
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, SIZE), tl.float32)
    highest, weight, sums = _attend(
        0, whole, highest, weight, sums, rows, k, v, bias0, bias1, bias2, members, first,
        query, queries, keys, size, block, causal, scale, k_row, b0_query, b1_query, b2_query,
        True, BIASES, BLOCKS, ROWS, KEYS, SIZE,
    )  # fmt: skip
    highest, weight, sums = _attend(
        whole, count, highest, weight, sums, rows, k, v, bias0, bias1, bias2, members, first,
        query, queries, keys, size, block, causal, scale, k_row, b0_query, b1_query, b2_query,
        False, BIASES, BLOCKS, ROWS, KEYS, SIZE,
    )  # fmt: skip
    start, stride = _packed(o, i, h, queries, inner, heads, size)
    _store_rows(out + start, query, stride, queries, size, _quotient(sums, weight), ROWS, SIZE)
    at = query + tl.arange(0, ROWS)
    log_sums += number.to(tl.int64) * 2 * queries + at
    logs = tl.log2(weight) * LN2
    total = highest + logs
    part = total - highest
    rest = (highest - (total - part)) + (logs - part)  # what the sum lost, whichever term is the larger
    tl.store(log_sums, total, mask=at < queries)
    tl.store(log_sums + queries, tl.where(total == float("-inf"), 0.0, rest), mask=at < queries)


@triton.jit
def _shares(scores, slopes, values, log_sums, at, queries):
    """Returns the shares of keys that a forward had, by its log-sums, and their gradients."""
    logs = tl.load(log_sums + at, mask=at < queries, other=0.0)
    rest = tl.load(log_sums + queries + at, mask=at < queries, other=0.0) * LOG2E
    distance = scores - tl.where(logs == float("-inf"), 0.0, logs)[:, None]
    return tl.exp2(distance * LOG2E - rest[:, None]), tl.dot(slopes, tl.trans(values), input_precision="ieee")


@triton.jit
def _descend_queries(
    begin, end, sums, rows, slopes, delta, k, v, log_sums, bias0, bias1, bias2, members, first,
    query, queries, keys, size, block, causal, scale, k_row, b0_query, b1_query, b2_query,
    WHOLE: tl.constexpr, BIASES: tl.constexpr, BLOCKS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Returns the sums of the queries' gradients with the tiles of keys from `begin` to `end`."""
    at = query + tl.arange(0, ROWS)
    for step in range(begin, end):
        key = _member(members, first, step, block, BLOCKS, KEYS)
        block_rows = _rows(k, key, k_row, keys, size, WHOLE, KEYS, SIZE)
        values = _rows(v, key, k_row, keys, size, WHOLE, KEYS, SIZE)
        scores = _scores(
            rows, block_rows, scale, bias0, bias1, bias2, b0_query, b1_query, b2_query,
            query, key, queries, keys, causal, WHOLE, BIASES, ROWS, KEYS,
        )  # fmt: skip
        shares, products = _shares(scores, slopes, values, log_sums, at, queries)
        gradient = shares * (products - delta[:, None])
        sums = tl.dot(gradient.to(block_rows.dtype), block_rows, sums, input_precision="ieee")
    return sums


@triton.jit
def backward_queries(
    q, k, v, out, dout, log_sums, deltas, dq,
    bias0, bias1, bias2, lists, members,
    outer, heads, inner, queries, keys, size, block, causal, scale,
    q_outer, q_inner, q_row, q_head, k_outer, k_inner, k_row, k_head,
    b0_outer, b0_inner, b0_head, b0_query, b1_outer, b1_inner, b1_head, b1_query,
    b2_outer, b2_inner, b2_head, b2_query,
    BIASES: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Writes `dq`, and `deltas`: sum(out * dout) of each query, which the other kernels read. Programs: see forward."""
    query, number, o, i, h = _program(queries, heads, inner, ROWS)
    rows = _rows(_head(q, o, i, h, q_outer, q_inner, q_head), query, q_row, queries, size, False, ROWS, SIZE)
    start, stride = _packed(o, i, h, queries, inner, heads, size)
    slopes = _rows(dout + start, query, stride, queries, size, False, ROWS, SIZE)
    results = _rows(out + start, query, stride, queries, size, False, ROWS, SIZE)
    delta = tl.sum(results.to(tl.float32) * slopes.to(tl.float32), 1)
    at = query + tl.arange(0, ROWS)
    log_sums += number.to(tl.int64) * 2 * queries
    tl.store(deltas + number.to(tl.int64) * queries + at, delta, mask=at < queries)
    k = _head(k, o, i, h, k_outer, k_inner, k_head)
    v = _head(v, o, i, h, k_outer, k_inner, k_head)
    bias0, bias1, bias2 = _biases_of(
        bias0, bias1, bias2, o, i, h,
        b0_outer, b0_inner, b0_head, b1_outer, b1_inner, b1_head, b2_outer, b2_inner, b2_head, BIASES,
    )  # fmt: skip
    first, count = _key_list(lists, h, query, queries, keys, block, causal, BLOCKS, ROWS, KEYS)
    whole = _whole_steps(query, keys, causal, count, BLOCKS, KEYS)
    sums = tl.zeros((ROWS, SIZE), tl.float32)
    sums = _descend_queries(
        0, whole, sums, rows, slopes, delta, k, v, log_sums, bias0, bias1, bias2, members, first,
        query, queries, keys, size, block, causal, scale, k_row, b0_query, b1_query, b2_query,
        True, BIASES, BLOCKS, ROWS, KEYS, SIZE,
    )  # fmt: skip
    sums = _descend_queries(
        whole, count, sums, rows, slopes, delta, k, v, log_sums, bias0, bias1, bias2, members, first,
        query, queries, keys, size, block, causal, scale, k_row, b0_query, b1_query, b2_query,
        False, BIASES, BLOCKS, ROWS, KEYS, SIZE,
    )  # fmt: skip
    _store_rows(dq + start, query, stride, queries, size, sums * scale, ROWS, SIZE)


@triton.jit
def _descend_keys(
    begin, end, key_sums, value_sums, block_rows, values, q, dout, log_sums, deltas, bias0, bias1, bias2,
    members, first, unseeing, key, queries, keys, size, block, causal, scale, q_row, stride,
    b0_query, b1_query, b2_query,
    WHOLE: tl.constexpr, BIASES: tl.constexpr, BLOCKS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Returns the sums of the gradients of keys and values with the tiles of queries from `begin` to `end`."""
    for step in range(begin, end):
        query = _member(members, first, step, block, BLOCKS, ROWS)
        if not BLOCKS:
            query += unseeing * ROWS
        rows = _rows(q, query, q_row, queries, size, WHOLE, ROWS, SIZE)
        slopes = _rows(dout, query, stride, queries, size, WHOLE, ROWS, SIZE)
        at = query + tl.arange(0, ROWS)
        scores = _scores(
            rows, block_rows, scale, bias0, bias1, bias2, b0_query, b1_query, b2_query,
            query, key, queries, keys, causal, WHOLE, BIASES, ROWS, KEYS,
        )  # fmt: skip
        shares, products = _shares(scores, slopes, values, log_sums, at, queries)
        delta = tl.load(deltas + at, mask=at < queries, other=0.0)
        gradient = shares * (products - delta[:, None])
        value_sums = tl.dot(tl.trans(shares.to(slopes.dtype)), slopes, value_sums, input_precision="ieee")
        key_sums = tl.dot(tl.trans(gradient.to(rows.dtype)), rows, key_sums, input_precision="ieee")
    return key_sums, value_sums


@triton.jit
def backward_keys(
    q, k, v, dout, log_sums, deltas, dk, dv,
    bias0, bias1, bias2, lists, members,
    outer, heads, inner, queries, keys, size, block, causal, scale,
    q_outer, q_inner, q_row, q_head, k_outer, k_inner, k_row, k_head,
    b0_outer, b0_inner, b0_head, b0_query, b1_outer, b1_inner, b1_head, b1_query,
    b2_outer, b2_inner, b2_head, b2_query,
    BIASES: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Writes `dk` and `dv`. A program has KEYS keys of a head, and reads ROWS queries at a time."""
    key, number, o, i, h = _program(keys, heads, inner, KEYS)
    k = _head(k, o, i, h, k_outer, k_inner, k_head)
    v = _head(v, o, i, h, k_outer, k_inner, k_head)
    block_rows = _rows(k, key, k_row, keys, size, False, KEYS, SIZE)
    values = _rows(v, key, k_row, keys, size, False, KEYS, SIZE)
    q = _head(q, o, i, h, q_outer, q_inner, q_head)
    start, stride = _packed(o, i, h, queries, inner, heads, size)
    dout += start
    log_sums += number.to(tl.int64) * 2 * queries
    deltas += number.to(tl.int64) * queries
    bias0, bias1, bias2 = _biases_of(
        bias0, bias1, bias2, o, i, h,
        b0_outer, b0_inner, b0_head, b1_outer, b1_inner, b1_head, b2_outer, b2_inner, b2_head, BIASES,
    )  # fmt: skip
    unseeing = tl.where(causal != 0, key // ROWS, 0)
    row = h * (keys // block) + key // block
    first, count = _list(lists, row, block, BLOCKS, ROWS, tl.maximum(tl.cdiv(queries, ROWS) - unseeing, 0))
    # Rows of keys behind the last one are not stored, so nothing must be hidden from them.
    whole = tl.where(causal != 0, 0, count if BLOCKS else queries // ROWS)
    key_sums = tl.zeros((KEYS, SIZE), tl.float32)
    value_sums = tl.zeros((KEYS, SIZE), tl.float32)
    key_sums, value_sums = _descend_keys(
        0, whole, key_sums, value_sums, block_rows, values, q, dout, log_sums, deltas, bias0, bias1, bias2,
        members, first, unseeing, key, queries, keys, size, block, causal, scale, q_row, stride,
        b0_query, b1_query, b2_query, True, BIASES, BLOCKS, ROWS, KEYS, SIZE,
    )  # fmt: skip
    key_sums, value_sums = _descend_keys(
        whole, count, key_sums, value_sums, block_rows, values, q, dout, log_sums, deltas, bias0, bias1, bias2,
        members, first, unseeing, key, queries, keys, size, block, causal, scale, q_row, stride,
        b0_query, b1_query, b2_query, False, BIASES, BLOCKS, ROWS, KEYS, SIZE,
    )  # fmt: skip
    start, stride = _packed(o, i, h, keys, inner, heads, size)
    _store_rows(dk + start, key, stride, keys, size, key_sums * scale, KEYS, SIZE)
    _store_rows(dv + start, key, stride, keys, size, value_sums, KEYS, SIZE)


@triton.jit
def backward_bias(
    q, k, v, dout, log_sums, deltas, total,
    bias0, bias1, bias2,
    total_outer, total_inner, total_heads, total_queries,
    outer, heads, inner, queries, keys, size, block, causal, scale,
    q_outer, q_inner, q_row, q_head, k_outer, k_inner, k_row, k_head,
    b0_outer, b0_inner, b0_head, b0_query, b1_outer, b1_inner, b1_head, b1_query,
    b2_outer, b2_inner, b2_head, b2_query,
    BIASES: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of a bias [total_outer, total_inner, total_heads, queries or 1, keys].

    Its sizes are those of the scores, or 1. It has one row for all queries if `total_queries` is 1. A program has ROWS
    x KEYS numbers of one matrix, and sums them up over all matrices of scores that they were added to.
    """
    tiles, key_tiles = tl.cdiv(queries, ROWS), tl.cdiv(keys, KEYS)
    shared_row = (total_queries == 1) & (queries > 1)
    own_tiles = tl.where(shared_row, 1, tiles)
    key = tl.program_id(0) % key_tiles * KEYS
    rest = tl.program_id(0) // key_tiles
    own_query = rest % own_tiles * ROWS
    own = rest // own_tiles
    own_h, own_i, own_o = own % total_heads, own // total_heads % total_inner, own // total_heads // total_inner
    each_heads, each_inner = heads // total_heads, inner // total_inner
    each_tiles = tl.where(shared_row, tiles, 1)
    column = tl.arange(0, KEYS)
    sums = tl.zeros((ROWS, KEYS), tl.float32)
    for step in range(outer // total_outer * each_inner * each_heads * each_tiles):
        query = own_query + step % each_tiles * ROWS
        matrix = step // each_tiles
        # A size of the bias is the scores' or 1: one of the two terms is always 0.
        h = own_h + matrix % each_heads
        i = own_i + matrix // each_heads % each_inner
        o = own_o + matrix // each_heads // each_inner
        number = (o * inner + i).to(tl.int64) * heads + h
        o, i, h = o.to(tl.int64), i.to(tl.int64), h.to(tl.int64)
        start, stride = _packed(o, i, h, queries, inner, heads, size)
        rows = _rows(_head(q, o, i, h, q_outer, q_inner, q_head), query, q_row, queries, size, False, ROWS, SIZE)
        slopes = _rows(dout + start, query, stride, queries, size, False, ROWS, SIZE)
        block_rows = _rows(_head(k, o, i, h, k_outer, k_inner, k_head), key, k_row, keys, size, False, KEYS, SIZE)
        values = _rows(_head(v, o, i, h, k_outer, k_inner, k_head), key, k_row, keys, size, False, KEYS, SIZE)
        at = query + tl.arange(0, ROWS)
        bias_at0, bias_at1, bias_at2 = _biases_of(
            bias0, bias1, bias2, o, i, h,
            b0_outer, b0_inner, b0_head, b1_outer, b1_inner, b1_head, b2_outer, b2_inner, b2_head, BIASES,
        )  # fmt: skip
        scores = _scores(
            rows, block_rows, scale, bias_at0, bias_at1, bias_at2, b0_query, b1_query, b2_query,
            query, key, queries, keys, causal, False, BIASES, ROWS, KEYS,
        )  # fmt: skip
        shares, products = _shares(scores, slopes, values, log_sums + number * 2 * queries, at, queries)
        delta = tl.load(deltas + number * queries + at, mask=at < queries, other=0.0)
        sums += tl.where((at < queries)[:, None], shares * (products - delta[:, None]), 0.0)
    if shared_row:
        tl.store(total + own.to(tl.int64) * keys + key + column, tl.sum(sums, 0), mask=key + column < keys)
    else:
        at = own_query + tl.arange(0, ROWS)
        place = (own.to(tl.int64) * queries + at)[:, None] * keys + (key + column)[None, :]
        tl.store(total + place, sums, mask=(at < queries)[:, None] & (key + column < keys)[None, :])


@triton.jit
def _rows_at(base, place, inside, size, SIZE: tl.constexpr):
    column = tl.arange(0, SIZE)
    mask = inside[:, None] & (column < size)[None, :]
    return tl.load(base + place[:, None] + column[None, :], mask=mask, other=0.0)


@triton.jit
def paged(
    q, k, v, out, atoms,
    heads, group, length, size, causal, scale,
    q_row, out_row, page, token,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Writes the attention of atoms over pages of a cache of keys and values, [pages, length, heads, size].

    An atom is a row of eight int32: the address of its list of pages, its first query, queries, pages, keys, and the
    position of its first query. A program has tiles of ROWS rows of an atom and a head of keys: of each query `group`
    rows, the heads that share those keys.
    """
    head = (tl.program_id(0) % heads).to(tl.int64)
    atom = atoms + (tl.program_id(0) // heads).to(tl.int64) * 8
    pages = tl.load(atom.to(tl.pointer_type(tl.int64))).to(tl.pointer_type(tl.int32))
    first = tl.load(atom + 2)
    count = tl.load(atom + 3) * group
    keys = tl.load(atom + 5)
    position = tl.load(atom + 6)
    k += head * size
    v += head * size
    column = tl.arange(0, SIZE)
    for begin in range(tl.program_id(1) * ROWS, count, tl.num_programs(1) * ROWS):
        row = begin + tl.arange(0, ROWS)
        query = (first + row // group).to(tl.int64)
        inside = (row < count)[:, None] & (column < size)[None, :]
        offset = ((head * group + row % group) * size)[:, None] + column[None, :]
        rows = tl.load(q + query[:, None] * q_row + offset, mask=inside, other=0.0)
        last = tl.where(causal != 0, tl.minimum(position + row // group, keys - 1), keys - 1)
        end = tl.where(causal != 0, tl.minimum(position + (begin + ROWS - 1) // group + 1, keys), keys)
        highest = tl.full((ROWS,), float("-inf"), tl.float32)
        weight = tl.zeros((ROWS,), tl.float32)
        sums = tl.zeros((ROWS, SIZE), tl.float32)
        for start in range(0, end, KEYS):
            key = start + tl.arange(0, KEYS)
            number = tl.load(pages + key // length, mask=key < keys, other=0)
            place = number.to(tl.int64) * page + (key % length).to(tl.int64) * token
            block = _rows_at(k, place, key < keys, size, SIZE)
            values = _rows_at(v, place, key < keys, size, SIZE)
            scores = tl.dot(rows, tl.trans(block), input_precision="ieee") * scale
            scores = tl.where(key[None, :] <= last[:, None], scores, float("-inf"))
            highest, weight, sums = _softmax_step(scores, highest, weight, sums, values)
        results = _quotient(sums, weight).to(out.dtype.element_ty)
        tl.store(out + query[:, None] * out_row + offset, results, mask=inside)
