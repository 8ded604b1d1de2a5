#pragma once

// A ragged batch: sequences of different lengths, one after the other, whose keys and values are in pages of a cache.
// The layout of the tensors that describe it is DeepSpeed's.

#include <cstdint>

#include "../cpu/rows.h"

namespace opforge::cpu {

struct SequenceState {
    int32_t start, tokens, seen, unused;  // where it begins in the batch; tokens in the batch, and before it
};

// What batch_metadata and seq_metadata say, checked.
struct Batch {
    int64_t tokens, count;
    const SequenceState* sequences;

    Batch(AtenTensorHandle batch_metadata, AtenTensorHandle seq_metadata, int64_t rows) {
        const Dense head = numbers(batch_metadata, "batch_metadata", false);
        const Dense states = numbers(seq_metadata, "seq_metadata", false);
        if (head.numel < 2) refuse({"batch_metadata has shape ", text(head), ", expected [2]: tokens and sequences"});
        tokens = head.as<const int32_t>()[0], count = head.as<const int32_t>()[1];
        sequences = states.as<const SequenceState>();
        if (count < 0 || count > states.numel / 4) {
            refuse({"batch_metadata has ", count, " sequences, expected 0 to ", states.numel / 4,
                    ", the rows of seq_metadata"});
        }
        if (tokens < 0 || tokens > rows) {
            refuse({"batch_metadata has ", tokens, " tokens, expected 0 to ", rows, ", the rows of the tensors"});
        }
        for (int64_t i = 0; i < count; ++i) {
            const SequenceState& state = sequences[i];
            const int64_t end = int64_t{state.start} + state.tokens;
            if (state.start < 0 || state.tokens < 0 || end > tokens) {
                refuse({"sequence ", i, " has tokens ", state.start, " to ", end, ", expected some of the batch's ",
                        tokens});
            }
            if (state.seen < 0 || int64_t{state.seen} + state.tokens > INT32_MAX) {
                refuse({"sequence ", i, " has ", state.seen,
                        " tokens before the batch, expected 0 or more, and less than 2^31 with the batch's"});
            }
        }
    }
};

// Reads the number of each token's sequence, and checks it.
inline const int32_t* sequence_of_tokens(AtenTensorHandle handle, const Batch& batch) {
    Dense ids = numbers(handle, "tokens_to_seq", false);
    if (ids.numel < batch.tokens) {
        refuse({"tokens_to_seq has shape ", text(ids), ", expected a number for each of the batch's ", batch.tokens,
                " tokens"});
    }
    ids.numel = batch.tokens;
    check_range(ids, "tokens_to_seq", 0, batch.count, "numbers of sequences");
    for (int64_t i = 0; i < batch.tokens; ++i) {
        const SequenceState& state = batch.sequences[ids.as<const int32_t>()[i]];
        if (i >= state.start && i < state.start + state.tokens) continue;
        refuse({"tokens_to_seq has a sequence at position ", i, " that does not have this token"});
    }
    return ids.as<const int32_t>();
}

// Rows that may lie apart: elements of a row are together.
struct SpacedRows : Dense {
    int64_t stride = 0;  // elements from a row to the next
    template <typename T>
    T* row(int64_t i) const {
        return as<T>() + i * stride;
    }
};

[[gnu::noinline]] inline SpacedRows spaced_rows(AtenTensorHandle handle, const char* name, bool written) {
    check_device(device_name(handle), "cpu", name, -1);
    const Operand in = operand(handle, written);
    SpacedRows out;
    if (!in.strided || in.dim != 2 || (in.sizes[1] > 1 && in.strides[1] != 1) || in.strides[0] < 0) {
        refuse({name, " has shape ", list_text(in.sizes, in.dim),
                ", expected rows [tokens, channels] whose channels are contiguous"});
    }
    if (written) check_distinct(in, name);
    out.data = in.data, out.sizes = in.sizes, out.dim = in.dim, out.numel = in.numel, out.stride = in.strides[0];
    check_shim(aoti_torch_get_dtype(handle, &out.dtype), "the dtype");
    out.item = static_cast<int64_t>(aoti_torch_dtype_element_size(out.dtype));
    out.kind = values_dtype(in.dtype, name);
    return out;
}

// Keys or values in pages: [pages, tokens of a page, heads, head size], heads and what is in them contiguous.
struct Pages : Dense {
    int64_t page = 0, token = 0;  // elements from one to the next
    template <typename T>
    T* at(int64_t number, int64_t slot, int64_t head) const {
        return as<T>() + number * page + slot * token + head * sizes[3];
    }
};

}  // namespace opforge::cpu
