#pragma once

// What the ranks' values of one element become.

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace opforge::shm {

enum DType : uint32_t { kF64, kF32, kBF16, kF16, kI8, kI16, kI32, kI64, kU8, kU16, kU32, kU64, kBool, kDTypes };
enum Op : uint32_t { kSum, kProduct, kMin, kMax, kAverage, kAnd, kOr, kXor, kOps };

// Reduces `count` elements of each of `ranks` inputs, in the order of the inputs. `out` may be one of them.
using Reduction = void (*)(void* out, const void* const* inputs, uint32_t ranks, size_t count);

// Returns nullptr if there is none.
Reduction reduction_of_floats(DType dtype, Op op);
Reduction reduction_of_integers(DType dtype, Op op);
inline Reduction reduction(uint32_t dtype, uint32_t op) {
    const auto kind = static_cast<DType>(dtype);
    return kind <= kF16 ? reduction_of_floats(kind, static_cast<Op>(op))
                        : reduction_of_integers(kind, static_cast<Op>(op));
}

size_t size_of(uint32_t dtype);

// The bytes that a loop keeps between its inputs: in the L1 cache, and `out` may be an input.
constexpr size_t kBlock = 4096;

// For types without a Vec. `Rule::next` adds an input to the values of those before.
template <typename T, typename Rule>
void reduce_blocks(void* out, const void* const* inputs, uint32_t ranks, size_t count) {
    constexpr size_t kMost = kBlock / sizeof(T);
    for (size_t begin = 0; begin < count; begin += kMost) {
        const size_t size = count - begin < kMost ? count - begin : kMost;
        T sums[kMost];
        std::memcpy(sums, static_cast<const T*>(inputs[0]) + begin, size * sizeof(T));
        for (uint32_t rank = 1; rank < ranks; ++rank) {
            const T* input = static_cast<const T*>(inputs[rank]) + begin;
            for (size_t i = 0; i < size; ++i) sums[i] = Rule::next(sums[i], input[i]);
        }
        std::memcpy(static_cast<T*>(out) + begin, sums, size * sizeof(T));
    }
}

}  // namespace opforge::shm
