"""Random layerwise token dropping: tokens and masks are moved as bits, so any dtype is an integer here.

A number that is out of range reads nothing: its token or element has all bits set, which is NaN in floats. It writes
nothing. Numbers are sorted: of equal ones the last writes.
"""

import triton
import triton.language as tl


@triton.jit
def move_tokens(
    whole, part, numbers, tokens, retained, columns, whole_batch, whole_token, part_batch, part_token,
    SCATTER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copies the token numbers[row] of `whole` to `part`, or back if SCATTER. One program per token and block of it."""
    row = tl.program_id(0)
    batch, place = (row // retained).to(tl.int64), (row % retained).to(tl.int64)
    token = tl.load(numbers + row)
    following = tl.load(numbers + row + 1, mask=place + 1 < retained, other=-1)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = at < columns
    exists = (token >= 0) & (token < tokens)
    of_whole = whole + batch * whole_batch + token.to(tl.int64) * whole_token + at
    of_part = part + batch * part_batch + place * part_token + at
    if SCATTER:
        tl.store(of_whole, tl.load(of_part, mask=here, other=0), mask=here & exists & (token != following))
    else:
        tl.store(of_part, tl.load(of_whole, mask=here & exists, other=-1), mask=here)


@triton.jit
def gather_mask(mask, out, numbers, tokens, retained, batch, BLOCK: tl.constexpr):
    """Computes out[layer, batch, i, j] = mask[batch, numbers[i], numbers[j]]. One program per row and block of it."""
    row = tl.program_id(0).to(tl.int64)
    sequence = row // retained
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = at < retained
    token = tl.load(numbers + row)
    column = tl.load(numbers + sequence * retained + at, mask=here, other=0)
    exists = here & (token >= 0) & (token < tokens) & (column >= 0) & (column < tokens)
    line = mask + ((sequence % batch) * tokens + token) * tokens
    tl.store(out + row * retained + at, tl.load(line + column, mask=exists, other=-1), mask=here)
