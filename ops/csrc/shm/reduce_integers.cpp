// Sums and products wrap, as torch's do: they are computed without a sign, which overflows by definition. An average is
// of the exact sum, rounded towards zero. Of bools, sum and max are "any", product and min are "all"; they have no
// average.

#include <type_traits>

#include "reduce.h"

namespace opforge::shm {

namespace {

// At least 32 bits: a product of two uint16_t would be computed in int, and overflow.
template <typename T>
using Wrapping = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;

template <typename T>
struct Sum {
    static Wrapping<T> first(T x) { return static_cast<Wrapping<T>>(x); }
    static Wrapping<T> next(Wrapping<T> a, T b) { return a + static_cast<Wrapping<T>>(b); }
    static T last(Wrapping<T> sum, uint32_t) { return static_cast<T>(sum); }
};
template <typename T>
struct Product : Sum<T> {
    static Wrapping<T> next(Wrapping<T> a, T b) { return a * static_cast<Wrapping<T>>(b); }
};
template <typename T>
struct Bits {
    static T first(T x) { return x; }
    static T last(T x, uint32_t) { return x; }
};
template <typename T>
struct And : Bits<T> {
    static T next(T a, T b) { return a & b; }
};
template <typename T>
struct Or : Bits<T> {
    static T next(T a, T b) { return a | b; }
};
template <typename T>
struct Xor : Bits<T> {
    static T next(T a, T b) { return a ^ b; }
};
template <typename T>
struct Min : Bits<T> {
    static T next(T a, T b) { return a < b ? a : b; }
};
template <typename T>
struct Max : Bits<T> {
    static T next(T a, T b) { return a > b ? a : b; }
};
template <typename T>
struct Average {
    using Exact = std::conditional_t<(sizeof(T) < 8), int64_t, __int128>;
    static Exact first(T x) { return x; }
    static Exact next(Exact a, T b) { return a + b; }
    static T last(Exact sum, uint32_t ranks) { return static_cast<T>(sum / ranks); }
};

template <typename T>
Reduction of(Op op) {
    using Unsigned = std::make_unsigned_t<T>;
    switch (op) {
        case kSum:
            return reduce_blocks<Unsigned, Sum<Unsigned>>;
        case kProduct:
            return reduce_blocks<Unsigned, Product<Unsigned>>;
        case kMin:
            return reduce_blocks<T, Min<T>>;
        case kMax:
            return reduce_blocks<T, Max<T>>;
        case kAverage:
            return reduce_blocks<T, Average<T>>;
        case kAnd:
            return reduce_blocks<Unsigned, And<Unsigned>>;
        case kOr:
            return reduce_blocks<Unsigned, Or<Unsigned>>;
        case kXor:
            return reduce_blocks<Unsigned, Xor<Unsigned>>;
        default:
            return nullptr;
    }
}

Reduction of_bools(Op op) {
    switch (op) {
        case kSum:
        case kMax:
        case kOr:
            return reduce_blocks<uint8_t, Or<uint8_t>>;
        case kProduct:
        case kMin:
        case kAnd:
            return reduce_blocks<uint8_t, And<uint8_t>>;
        case kXor:
            return reduce_blocks<uint8_t, Xor<uint8_t>>;
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
