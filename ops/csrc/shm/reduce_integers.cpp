// Sums and products wrap, as torch's do: they are computed without a sign, which overflows by definition. An average is
// of the exact sum, rounded towards zero. Of bools, sum and max are "any", product and min are "all"; they have no
// average.

#include <type_traits>

#include "reduce.h"

namespace opforge::shm {

namespace {

struct Sum {
    template <typename T>
    static T next(T a, T b) {
        return static_cast<T>(a + b);
    }
};
struct Product {
    // At least 32 bits: a product of two uint16_t would be computed in int, and overflow.
    template <typename T>
    static T next(T a, T b) {
        return static_cast<T>(std::common_type_t<T, uint32_t>{a} * b);
    }
};
struct Min {
    template <typename T>
    static T next(T a, T b) {
        return a < b ? a : b;
    }
};
struct Max {
    template <typename T>
    static T next(T a, T b) {
        return a > b ? a : b;
    }
};
struct And {
    static uint8_t next(uint8_t a, uint8_t b) { return a & b; }
};
struct Or {
    static uint8_t next(uint8_t a, uint8_t b) { return a | b; }
};
struct Xor {
    static uint8_t next(uint8_t a, uint8_t b) { return a ^ b; }
};

// Bits do not depend on the type: those of all types are reduced as bytes.
template <typename Rule, size_t kSize>
void reduce_bits(void* out, const void* const* inputs, uint32_t ranks, size_t count) {
    reduce_blocks<uint8_t, Rule>(out, inputs, ranks, count * kSize);
}

template <typename T>
void average(void* out, const void* const* inputs, uint32_t ranks, size_t count) {
    using Exact = std::conditional_t<(sizeof(T) < 4), int32_t, std::conditional_t<(sizeof(T) < 8), int64_t, __int128>>;
    constexpr size_t kMost = kBlock / sizeof(Exact);
    for (size_t begin = 0; begin < count; begin += kMost) {
        const size_t size = count - begin < kMost ? count - begin : kMost;
        Exact sums[kMost] = {};
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            const T* input = static_cast<const T*>(inputs[rank]) + begin;
            for (size_t i = 0; i < size; ++i) sums[i] += input[i];
        }
        T* result = static_cast<T*>(out) + begin;
        for (size_t i = 0; i < size; ++i) result[i] = static_cast<T>(sums[i] / static_cast<Exact>(ranks));
    }
}

template <typename T>
Reduction of(Op op) {
    using Unsigned = std::make_unsigned_t<T>;
    switch (op) {
        case kSum:
            return reduce_blocks<Unsigned, Sum>;
        case kProduct:
            return reduce_blocks<Unsigned, Product>;
        case kMin:
            return reduce_blocks<T, Min>;
        case kMax:
            return reduce_blocks<T, Max>;
        case kAverage:
            return average<T>;
        case kAnd:
            return reduce_bits<And, sizeof(T)>;
        case kOr:
            return reduce_bits<Or, sizeof(T)>;
        case kXor:
            return reduce_bits<Xor, sizeof(T)>;
        default:
            return nullptr;
    }
}

Reduction of_bools(Op op) {
    switch (op) {
        case kSum:
        case kMax:
        case kOr:
            return reduce_blocks<uint8_t, Or>;
        case kProduct:
        case kMin:
        case kAnd:
            return reduce_blocks<uint8_t, And>;
        case kXor:
            return reduce_blocks<uint8_t, Xor>;
        default:
            return nullptr;
    }
}

}  // namespace

Reduction reduction_of_integers(DType dtype, Op op) {
    switch (dtype) {
        case kI8:
            return of<int8_t>(op);
        case kI16:
            return of<int16_t>(op);
        case kI32:
            return of<int32_t>(op);
        case kI64:
            return of<int64_t>(op);
        case kU8:
            return of<uint8_t>(op);
        case kU16:
            return of<uint16_t>(op);
        case kU32:
            return of<uint32_t>(op);
        case kU64:
            return of<uint64_t>(op);
        case kBool:
            return of_bools(op);
        default:
            return nullptr;
    }
}

size_t size_of(uint32_t dtype) {
    switch (dtype) {
        case kF64:
        case kI64:
        case kU64:
            return 8;
        case kF32:
        case kI32:
        case kU32:
            return 4;
        case kBF16:
        case kF16:
        case kI16:
        case kU16:
            return 2;
        default:
            return 1;
    }
}

}  // namespace opforge::shm
