#pragma once

// Applies a rule to tensors of any dtypes, in float vectors. float32 tensors are read and written in place. Others are
// converted to floats and back by blocks that fit the first-level cache. So a rule is compiled once, instead of once
// for each combination of dtypes. It is compiled once more for the most common one, bfloat16 with float32 states, for
// which the conversion by blocks costs a tenth.

#include <algorithm>
#include <cstring>

#include <opforge/multi_tensor.h>

#include "vec.h"

namespace opforge::cpu {

constexpr int64_t kBlock = 512;  // elements
static_assert(kBlock % Vec::kWidth == 0, "the last vector of a block fits in it");

// Converts to floats, up to a whole number of vectors; the last vector is filled with zeros.
template <typename T>
void to_floats(const T* from, int64_t count, float* to) {
    int64_t k = 0;
    for (; k + Vec::kWidth <= count; k += Vec::kWidth) store(to + k, load(from + k));
    if (k == count) return;
    T last[Vec::kWidth] = {};
    std::memcpy(last, from + k, static_cast<size_t>(count - k) * sizeof(T));
    store(to + k, load(last));
}

// Converts floats, of which there is space for a whole number of vectors.
template <typename T>
void from_floats(const float* from, int64_t count, T* to) {
    int64_t k = 0;
    for (; k + Vec::kWidth <= count; k += Vec::kWidth) store(to + k, load(from + k));
    if (k == count) return;
    T last[Vec::kWidth];
    store(last, load(from + k));
    std::memcpy(to + k, last, static_cast<size_t>(count - k) * sizeof(T));
}

template <typename Visit>
void with_elements(DType dtype, void* data, const Visit& visit) {
    with_dtype(dtype, [&](auto type) { visit(static_cast<typename decltype(type)::type*>(data)); });
}

// `each_vector` for the whole vectors of bfloat16 parameters and gradients with float32 states. Returns where it ended.
template <int kOperands, unsigned kWrites, typename Step>
int64_t each_narrow(const TensorGroup& group, int64_t begin, int64_t end, const Step step) {
    BFloat16* narrow[2];
    float* x[kOperands];
    for (int i = 0; i < 2; ++i) narrow[i] = static_cast<BFloat16*>(group.data[i]) + begin;
    for (int i = 2; i < kOperands; ++i) x[i] = static_cast<float*>(group.data[i]) + begin;
    int64_t k = 0;
    for (; k + Vec::kWidth <= end - begin; k += Vec::kWidth) {
        Vec element[kOperands];
        for (int i = 0; i < kOperands; ++i) element[i] = i < 2 ? load(narrow[i] + k) : load(x[i] + k);
        step(element, k);
        for (int i = 0; i < kOperands; ++i) {
            if ((kWrites >> i & 1u) == 0) continue;
            if (i < 2) {
                store(narrow[i] + k, element[i]);
            } else {
                store(x[i] + k, element[i]);
            }
        }
    }
    return begin + k;
}

// Calls step(x, at) for each vector of elements [begin, end). x are the vectors of the operands, which step changes in
// place; `at` counts from `begin`. The bits of kReads and kWrites select the operands that are read and those that are
// replaced. The last vector is filled with zeros, so an element's result does not depend on its position. With kNarrow,
// which requires that all operands are read, bfloat16 parameters are updated in place too.
template <int kOperands, unsigned kReads, unsigned kWrites, bool kNarrow = false, typename Step>
void each_vector(const TensorGroup& group, int64_t begin, int64_t end, const Step step) {
    void* const copy = group.data[kMaxTensors - 1];
    bool in_place = copy == nullptr || kWrites % 2 == 0;
    const auto is_used = [](int i) { return ((kReads | kWrites) >> i & 1u) != 0; };
    for (int i = 0; i < kOperands; ++i) in_place = in_place && (!is_used(i) || group.dtypes[i] == DType::Float32);
    int64_t at = begin;
    if constexpr (kNarrow) {
        bool narrow = copy == nullptr;
        for (int i = 0; i < kOperands; ++i) {
            narrow = narrow && group.dtypes[i] == (i < 2 ? DType::BFloat16 : DType::Float32);
        }
        if (narrow) at = each_narrow<kOperands, kWrites>(group, begin, end, step);
    }
    alignas(64) float buffer[kOperands][kBlock];
    while (at < end) {
        int64_t count = in_place ? end - at : std::min(kBlock, end - at);
        const bool whole = count >= Vec::kWidth;
        if (whole) count = count / Vec::kWidth * Vec::kWidth;  // the rest is a separate block
        float* x[kOperands];
        for (int i = 0; i < kOperands; ++i) {
            x[i] = buffer[i];
            if (!is_used(i)) continue;
            if (whole && group.dtypes[i] == DType::Float32) {
                x[i] = static_cast<float*>(group.data[i]) + at;
            } else if ((kReads >> i & 1u) != 0) {
                with_elements(group.dtypes[i], group.data[i],
                              [&](const auto* data) { to_floats(data + at, count, buffer[i]); });
            }
        }
        for (int64_t k = 0; k < count; k += Vec::kWidth) {
            Vec element[kOperands];
            for (int i = 0; i < kOperands; ++i) element[i] = (kReads >> i & 1u) != 0 ? load(x[i] + k) : Vec(0.0f);
            step(element, at - begin + k);
            for (int i = 0; i < kOperands; ++i) {
                if ((kWrites >> i & 1u) != 0) store(x[i] + k, element[i]);
            }
        }
        const auto put = [&](int i, int to) {
            with_elements(group.dtypes[to], group.data[to], [&](auto* data) { from_floats(x[i], count, data + at); });
        };
        for (int i = 0; i < kOperands; ++i) {
            if ((kWrites >> i & 1u) != 0 && x[i] == buffer[i]) put(i, i);
        }
        if (copy && kWrites % 2 != 0) put(0, kMaxTensors - 1);
        at += count;
    }
}

}  // namespace opforge::cpu
