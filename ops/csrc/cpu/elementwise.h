#pragma once

// Applies a rule to tensors of any dtypes, in float vectors. float32 tensors are read and written in place. Others are
// converted to floats and back by blocks that fit the first-level cache. So a rule is compiled once, instead of once
// for each combination of dtypes. It is compiled once more for each of the most common ones, parameters of one dtype
// with float32 states: there the conversion by blocks costs a tenth, of float16 a third.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <opforge/multi_tensor.h>

#include "vec.h"

namespace opforge::cpu {

constexpr int64_t kBlock = 512;  // elements
static_assert(kBlock % Vec::kWidth == 0, "the last vector of a block fits in it");

// Vectors of each operand that are updated together. A processor lets a load wait for an earlier store whose address
// has the same lowest 12 bits, as those of tensors that follow each other in memory do. So a group is loaded before the
// group ahead of it is stored: that wait took up to a quarter of the time. With 16 registers there is no space for two
// groups.
constexpr int kGroup = Vec::kWidth == 16 ? 2 : 1;

// Loads a vector, and fetches a later one into the caches: the processor's own prefetching stops at the end of each
// page of 4 KiB, so each page of each operand would begin with a wait for the memory. The data may end before the
// address.
template <typename T>
Vec load_early(const T* data) {
    constexpr int64_t kAhead = 2048;  // bytes
    __builtin_prefetch(reinterpret_cast<const char*>(data) + kAhead);
    return load(data);
}

// Fetches the first lines of the next page into the caches, once for each page of data that is read in steps of
// `bytes`. Within a page the processor reads ahead by itself, faster than with load_early: an optimizer's operands
// together have so many lines under way that those of load_early came in the place of others.
inline void fetch_page(const void* data, int64_t bytes) {
    constexpr uintptr_t kPage = 4096, kAhead = 1024, kLines = 4, kLine = 64;
    const uintptr_t in_page = (reinterpret_cast<uintptr_t>(data) + kAhead) % kPage;
    if (in_page >= static_cast<uintptr_t>(bytes)) return;
    const char* const page = static_cast<const char*>(data) + kAhead - in_page;
    for (uintptr_t line = 0; line < kLines; ++line) __builtin_prefetch(page + line * kLine);
}

// Converts to floats, up to a whole number of vectors; the last vector is filled with zeros.
template <typename T>
void to_floats(const T* from, int64_t count, float* to) {
    int64_t k = 0;
    for (; k + Vec::kWidth <= count; k += Vec::kWidth) store(to + k, load_early(from + k));
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

// Calls visit with the numbers 0 ... kCount - 1, as constants.
template <int kCount, typename Visit>
void each_index(const Visit& visit) {
    if constexpr (kCount > 0) {
        each_index<kCount - 1>(visit);
        visit(std::integral_constant<int, kCount - 1>{});
    }
}

// Whether a rule is compiled for parameters of type T in place. The portable conversion of float16 takes so many
// registers that it is faster by blocks.
template <typename T, bool kNarrow>
constexpr bool kDirect = std::is_same_v<T, float> || (kNarrow && (std::is_same_v<T, BFloat16> || kConvertsHalves));

template <typename Visit>
void with_elements(DType dtype, void* data, const Visit& visit) {
    with_dtype(dtype, [&](auto type) { visit(static_cast<typename decltype(type)::type*>(data)); });
}

// `each_vector` for whole groups of vectors in the operands' own memory: parameters and gradients of type T, states in
// float32. `data` are the addresses of the first element, whose number is `at`. Returns the number of elements that are
// done. All that it calls is inlined: where GCC left a call in this loop, no vector stayed in a register.
template <typename T, int kVectors, int kOperands, unsigned kReads, unsigned kWrites, typename Step>
[[gnu::flatten, gnu::noinline]] int64_t each_group(void* const* data, int64_t at, int64_t count, const Step step) {
    void* base[kOperands];  // a copy: the compiler would read the addresses again after each store
    std::copy_n(data, kOperands, base);
    constexpr int64_t kStep = kVectors * Vec::kWidth;
    using Group = Vec[kVectors][kOperands];
    const auto each_operand = [&](int64_t k, const auto& visit) {
        each_index<kOperands>([&](auto i) {
            using Element = std::conditional_t<(i < 2), T, float>;
            visit(i, static_cast<Element*>(base[i]) + k);
        });
    };
    const auto read = [&](int64_t k, Group& group) {
        each_operand(k, [&](auto i, const auto* from) {
            if ((kReads >> i & 1u) != 0) fetch_page(from, kStep * sizeof(*from));
        });
        each_index<kVectors>([&](auto vector) {
            each_operand(k + vector * Vec::kWidth, [&](auto i, const auto* from) {
                group[vector][i] = (kReads >> i & 1u) != 0 ? load(from) : Vec(0.0f);
            });
        });
    };
    const auto update = [&](int64_t k, Group& group) {
        each_index<kVectors>([&](auto vector) { step(group[vector], at + k + vector * Vec::kWidth); });
        each_operand(k, [&](auto i, auto* to) {
            if constexpr ((kWrites >> i & 1u) == 0) {
                return;
            } else if constexpr (kVectors == 2) {
                store(to, group[0][i], group[1][i]);
            } else {
                static_assert(kVectors == 1);
                store(to, group[0][i]);
            }
        });
    };
    int64_t k = 0;
    if constexpr (kVectors > 1) {
        Group group, next;
        if (count >= kStep) read(0, group);
        for (; k + 3 * kStep <= count; k += 2 * kStep) {
            read(k + kStep, next);
            update(k, group);
            read(k + 2 * kStep, group);
            update(k + kStep, next);
        }
        if (k + kStep <= count) {
            update(k, group);
            k += kStep;
        }
    }
    for (; k + kStep <= count; k += kStep) {
        Group group;
        read(k, group);
        update(k, group);
    }
    return k;
}

// Calls step(x, at) for each vector of elements [begin, end). x are the vectors of the operands, which step changes in
// place; `at` counts from `begin`. The bits of kReads and kWrites select the operands that are read and those that are
// replaced. The last vector is filled with zeros, so an element's result does not depend on its position. With kNarrow
// parameters and gradients of 16 bits are updated in place too.
template <int kOperands, unsigned kReads, unsigned kWrites, bool kNarrow = false, typename Step>
void each_vector(const TensorGroup& group, int64_t begin, int64_t end, const Step step) {
    void* const copy = kWrites % 2 != 0 ? group.data[kMaxTensors - 1] : nullptr;
    const auto is_read = [](int i) { return (kReads >> i & 1u) != 0; };
    const auto is_used = [](int i) { return ((kReads | kWrites) >> i & 1u) != 0; };
    bool is_direct = copy == nullptr && (group.dtypes[0] == group.dtypes[1] || !is_used(1));
    for (int i = 2; i < kOperands; ++i) is_direct = is_direct && (!is_used(i) || group.dtypes[i] == DType::Float32);
    int64_t at = begin;
    if (is_direct) {
        with_dtype(group.dtypes[0], [&](auto type) {
            using T = typename decltype(type)::type;
            if constexpr (kDirect<T, kNarrow>) {
                void* data[kOperands];
                each_index<kOperands>([&](auto i) {
                    data[i] = static_cast<std::conditional_t<(i < 2), T, float>*>(group.data[i]) + begin;
                });
                at += each_group<T, kGroup, kOperands, kReads, kWrites>(data, 0, end - begin, step);
            }
        });
    }
    alignas(64) float buffer[kOperands][kBlock];
    while (at < end) {
        int64_t count = std::min(kBlock, end - at);
        const bool whole = count >= Vec::kWidth;
        if (whole) count = count / Vec::kWidth * Vec::kWidth;  // the rest is a separate block
        float* x[kOperands];
        for (int i = 0; i < kOperands; ++i) {
            x[i] = buffer[i];
            if (!is_used(i)) continue;
            if (whole && group.dtypes[i] == DType::Float32) {
                x[i] = static_cast<float*>(group.data[i]) + at;
            } else if (is_read(i)) {
                with_elements(group.dtypes[i], group.data[i],
                              [&](const auto* data) { to_floats(data + at, count, buffer[i]); });
            }
        }
        void* data[kOperands];
        std::copy_n(x, kOperands, data);
        each_group<float, 1, kOperands, kReads, kWrites>(data, at - begin,
                                                         (count + Vec::kWidth - 1) / Vec::kWidth * Vec::kWidth, step);
        const auto put = [&](int i, int to) {
            with_elements(group.dtypes[to], group.data[to], [&](auto* data) { from_floats(x[i], count, data + at); });
        };
        for (int i = 0; i < kOperands; ++i) {
            if ((kWrites >> i & 1u) != 0 && x[i] == buffer[i]) put(i, i);
        }
        if (copy) put(0, kMaxTensors - 1);
        at += count;
    }
}

}  // namespace opforge::cpu
