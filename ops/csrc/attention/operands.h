#pragma once

// The torch side of attention: reads a call from the dispatcher's stack, and checks all of it before anything is
// written. Tensors are [outer, inner, length, heads, size]; their strides may be any, if elements lie without gaps.

#include <algorithm>

#include "../fused/current_device.h"
#include "attention.h"

namespace opforge::attention {

using namespace opforge::fused;

inline constexpr int64_t kLargestHead = 256;
inline constexpr int64_t kBlocks[] = {16, 32, 64, 128};

[[gnu::noinline]] inline Operand read_operand(AtenTensorHandle tensor, const char* name, bool written) {
    check_device(device_name(tensor), "cpu", name, -1);
    const Operand in = operand(tensor, written);
    if (!in.strided) refuse({name, " is sparse, expected a dense tensor: convert it with .to_dense()"});
    if (written) check_distinct(in, name);
    return in;
}

// The sizes that all tensors of a call must have.
struct Sizes {
    int64_t outer, inner, heads, size;
    DType dtype;
    const char* dtype_name;
};

// Reads a tensor of `length` rows; of any length if it is -1, and then sets it.
[[gnu::noinline]] inline cpu::HeadRows read_heads(AtenTensorHandle tensor, const char* name, bool written,
                                                  const Sizes& sizes, int64_t& length) {
    const Operand in = read_operand(tensor, name, written);
    const int64_t expected[5] = {sizes.outer, sizes.inner, length, sizes.heads, sizes.size};
    bool fits = in.dim == 5;
    for (int64_t i = 0; fits && i < 5; ++i) fits = in.sizes[i] == expected[i] || (i == 2 && length < 0);
    if (!fits) {
        const Word rows = length < 0 ? Word("any length") : Word(length);
        refuse({name, " has shape ", tuple_text(in.sizes, in.dim), ", expected (", sizes.outer, ", ", sizes.inner, ", ",
                rows, ", ", sizes.heads, ", ", sizes.size, "): [outer, inner, length, heads, size], as that of q"});
    }
    const DType dtype = values_dtype(in.dtype, name);
    if (dtype != sizes.dtype) {
        refuse({name, " is ", in.dtype, ", expected the dtype of q, ", sizes.dtype_name,
                ": convert it with .to(q.dtype)"});
    }
    length = in.sizes[2];
    if (in.numel > 0 && sizes.size > 1 && in.strides[4] != 1) {
        refuse(
            {name, " has a stride of ", in.strides[4], " in its last dimension, expected 1: pass .contiguous() of it"});
    }
    return {in.data, dtype, in.strides[0], in.strides[1], in.strides[3], in.strides[2]};
}

[[gnu::noinline]] inline Sizes read_sizes(AtenTensorHandle q) {
    const Operand in = read_operand(q, "q", false);
    if (in.dim != 5) {
        refuse({"q has shape ", tuple_text(in.sizes, in.dim), ", expected [outer, inner, length, heads, size]"});
    }
    if (in.sizes[4] < 1 || in.sizes[4] > kLargestHead) {
        refuse({"q has heads of size ", in.sizes[4], ", expected 1 to ", kLargestHead});
    }
    return {in.sizes[0], in.sizes[1], in.sizes[3], in.sizes[4], values_dtype(in.dtype, "q"), in.dtype};
}

// Reads a float32 tensor [outer, inner, heads, at least the queries] without gaps. Returns its last size.
[[gnu::noinline]] inline int64_t read_sums(AtenTensorHandle tensor, const char* name, bool written,
                                           const cpu::Attention& call, float*& data) {
    const Operand in = read_operand(tensor, name, written);
    const int64_t heads = call.outer * call.inner * call.heads, last = in.dim > 0 ? in.sizes[in.dim - 1] : 0;
    if (!equal(in.dtype, "float32") || !in.contiguous || in.numel != heads * last || last < call.queries) {
        refuse({name, " is ", in.dtype, " of shape ", tuple_text(in.sizes, in.dim),
                ", expected contiguous float32 of shape (", call.outer, ", ", call.inner, ", ", call.heads, ", ",
                call.queries, " or more)"});
    }
    data = static_cast<float*>(in.data);
    return last;
}

[[gnu::noinline]] inline cpu::ScoreBias read_bias(AtenTensorHandle tensor, const char* name, bool multiplied,
                                                  const cpu::Attention& call) {
    const Operand in = read_operand(tensor, name, false);
    const int64_t full[5] = {call.outer, call.inner, call.heads, call.queries, call.keys};
    bool fits = in.dim == 5 && in.sizes[4] == call.keys;
    for (int64_t i = 0; fits && i < 4; ++i) fits = in.sizes[i] == full[i] || in.sizes[i] == 1;
    if (!fits) {
        refuse({name, " has shape ", tuple_text(in.sizes, in.dim), ", which does not broadcast to the scores, ",
                tuple_text(full, 5), ": each size but the last must be that one or 1"});
    }
    if (!in.contiguous) refuse({name, " is not contiguous: pass .contiguous() of it"});
    int64_t strides[4];
    for (int64_t i = 0; i < 4; ++i) strides[i] = in.sizes[i] == 1 ? 0 : in.strides[i];
    // With one query a row for each query and one for all are the same: the sums over queries are then of one number.
    const DType dtype = values_dtype(in.dtype, name);
    return {in.data, dtype, strides[0], strides[1], strides[2], strides[3], multiplied, nullptr};
}

[[gnu::noinline]] inline int32_t* read_indexes(AtenTensorHandle tensor, const char* name, int64_t& count) {
    const Operand in = read_operand(tensor, name, false);
    int32_t dtype;
    check_shim(aoti_torch_get_dtype(tensor, &dtype), "the dtype");
    if (dtype != aoti_torch_dtype_int32() || !in.contiguous || in.dim != 1) {
        refuse({name, " has shape ", tuple_text(in.sizes, in.dim),
                ", expected a contiguous int32 tensor of one dimension"});
    }
    count = in.numel;
    return static_cast<int32_t*>(in.data);
}

// Checks lists of blocks: [heads * rows + 1] offsets that ascend, and the columns of each row, which ascend too.
[[gnu::noinline]] inline cpu::BlockList checked_blocks(const int32_t* offsets, int64_t offset_count,
                                                       const int32_t* columns, int64_t count, int64_t block,
                                                       int64_t heads, int64_t queries, int64_t keys) {
    if (std::find(std::begin(kBlocks), std::end(kBlocks), block) == std::end(kBlocks)) {
        refuse({"block is ", block, ", expected 16, 32, 64 or 128"});
    }
    if (queries % block != 0 || keys % block != 0) {
        refuse({"the lengths are ", queries, " and ", keys, ", expected multiples of the block, ", block,
                ": pad the sequences"});
    }
    const int64_t rows = heads * (queries / block), width = keys / block;
    if (offset_count != rows + 1) {
        refuse({"offsets has ", offset_count, " elements, expected ", rows + 1, ": one for each of the ",
                queries / block, " rows of blocks of each of the ", heads,
                " heads, and the end. The layout must cover the whole length"});
    }
    if (offsets[0] != 0 || offsets[rows] != count) {
        refuse({"offsets begins with ", offsets[0], " and ends with ", offsets[rows],
                ", expected 0 and the number of columns, ", count});
    }
    for (int64_t row = 0; row < rows; ++row) {
        if (offsets[row] > offsets[row + 1] || offsets[row + 1] > count) {
            refuse({"offsets[", row + 1, "] is ", offsets[row + 1], ", expected a number from ", offsets[row], " to ",
                    count});
        }
        for (int64_t at = offsets[row]; at < offsets[row + 1]; ++at) {
            const int64_t least = at > offsets[row] ? columns[at - 1] + int64_t{1} : 0;
            if (columns[at] >= least && columns[at] < width) continue;
            refuse({"columns[", at, "] is ", columns[at], ", expected a number from ", least, " to less than ", width,
                    ": the columns of a row ascend"});
        }
    }
    return {offsets, columns, block};
}

}  // namespace opforge::attention
