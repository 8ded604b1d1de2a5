// Sums and products wrap, as torch's do: they are computed without a sign, which overflows by definition. An average is
// of the exact sum, rounded towards zero. Of bools, sum and max are "any", product and min are "all"; they have no
// average.

#include <cstring>
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
    reduce_each<uint8_t, Rule>(out, inputs, ranks, count * kSize);
}

template <typename T>
void average(void* out, const void* const* inputs, uint32_t ranks, size_t count) {
    using Exact = std::conditional_t<(sizeof(T) < 4), int32_t, std::conditional_t<(sizeof(T) < 8), int64_t, __int128>>;
    using Divisor = std::conditional_t<(sizeof(T) < 4), int32_t, uint32_t>;
    constexpr size_t kMost = 512;
    const auto divisor = static_cast<Divisor>(ranks);
    for (size_t begin = 0; begin < count; begin += kMost) {
        const size_t size = count - begin < kMost ? count - begin : kMost;
        const auto input = [=](uint32_t rank) { return static_cast<const T*>(inputs[rank]) + begin; };
        Exact sums[kMost];
        for (size_t i = 0; i < size; ++i) sums[i] = input(0)[i];
        for (uint32_t rank = 1; rank < ranks; ++rank) {
            const T* const from = input(rank);
            for (size_t i = 0; i < size; ++i) sums[i] += from[i];
        }
        T* result = static_cast<T*>(out) + begin;
        for (size_t i = 0; i < size; ++i) result[i] = static_cast<T>(sums[i] / divisor);
    }
}

template <typename T>
Reduction of(Op op) {
    using Unsigned = std::make_unsigned_t<T>;
    switch (op) {
        case kSum:
            return reduce_each<Unsigned, Sum>;
        case kProduct:
            return reduce_each<Unsigned, Product>;
        case kMin:
            return reduce_each<T, Min>;
        case kMax:
            return reduce_each<T, Max>;
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
            return reduce_each<uint8_t, Or>;
        case kProduct:
        case kMin:
        case kAnd:
            return reduce_each<uint8_t, And>;
        case kXor:
            return reduce_each<uint8_t, Xor>;
        default:
            return nullptr;
    }
}

}  // namespace

void reduce_blocks(void* out, const void* const* inputs, uint32_t ranks, size_t count, size_t item,
                   void (*add)(void*, const void*, size_t)) {
    alignas(64) char sums[kBlock];
    const auto at = [](const void* data, size_t offset) { return static_cast<const char*>(data) + offset; };
    for (size_t begin = 0; begin < count * item; begin += kBlock) {
        const size_t bytes = count * item - begin < kBlock ? count * item - begin : kBlock;
        std::memcpy(sums, at(inputs[0], begin), bytes);
        for (uint32_t rank = 1; rank < ranks; ++rank) add(sums, at(inputs[rank], begin), bytes / item);
        std::memcpy(static_cast<char*>(out) + begin, sums, bytes);
    }
}

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
