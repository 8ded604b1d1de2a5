#pragma once

// What the ranks' values of one element become.

#include <cstddef>
#include <cstdint>

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

// The bytes that are kept between the inputs: in the L1 cache, and `out` may be an input.
constexpr size_t kBlock = 4096;

// For types without a Vec, of `item` bytes. `add` adds an input to the values of those before.
void reduce_blocks(void* out, const void* const* inputs, uint32_t ranks, size_t count, size_t item,
                   void (*add)(void* sums, const void* input, size_t count));

// The loop is a function of its own: within the loop over the ranks the compiler takes two ranks at once, without
// vectors.
template <typename T, typename Rule>
void add_input(void* __restrict sums, const void* __restrict input, size_t count) {
    T* const to = static_cast<T*>(sums);
    const T* const from = static_cast<const T*>(input);
    for (size_t i = 0; i < count; ++i) to[i] = Rule::next(to[i], from[i]);
}

template <typename T, typename Rule>
void reduce_each(void* out, const void* const* inputs, uint32_t ranks, size_t count) {
    reduce_blocks(out, inputs, ranks, count, sizeof(T), add_input<T, Rule>);
}

}  // namespace opforge::shm
