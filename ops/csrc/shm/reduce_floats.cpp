// fp32, bf16 and fp16 through Vec: the 16-bit types are converted once before and once after. fp64 by plain loops.
// min and max return NaN if any rank has one, as torch.amin does.

#include <cstring>

#include "../cpu/vec.h"
#include "reduce.h"

namespace opforge::shm {

namespace {

using cpu::Vec;

struct VecSum {
    static Vec next(Vec a, Vec b) { return a + b; }
    static Vec last(Vec sum, Vec) { return sum; }
};
struct VecProduct : VecSum {
    static Vec next(Vec a, Vec b) { return a * b; }
};
struct VecMin : VecSum {
    static Vec next(Vec a, Vec b) { return cpu::select_nan(a, a, cpu::smaller(a, b)); }
};
struct VecMax : VecSum {
    static Vec next(Vec a, Vec b) { return cpu::select_nan(a, a, cpu::larger(a, b)); }
};
struct VecAverage : VecSum {
    static Vec last(Vec sum, Vec ranks) { return sum / ranks; }
};

template <typename T, typename Rule>
void reduce_vectors(void* out, const void* const* inputs, uint32_t ranks, size_t count) {
    constexpr size_t kWidth = Vec::kWidth;
    const Vec divisor(static_cast<float>(ranks));
    const auto input = [&](uint32_t rank) { return static_cast<const T*>(inputs[rank]); };
    T* result = static_cast<T*>(out);
    size_t i = 0;
    if (ranks == 2) {  // most often: the loop below would read the pointers again for each vector
        const T *a = input(0), *b = input(1);
        for (; i + kWidth <= count; i += kWidth)
            cpu::store(result + i, Rule::last(Rule::next(cpu::load(a + i), cpu::load(b + i)), divisor));
    }
    for (; i + kWidth <= count; i += kWidth) {
        Vec sum = cpu::load(input(0) + i);
        for (uint32_t rank = 1; rank < ranks; ++rank) sum = Rule::next(sum, cpu::load(input(rank) + i));
        cpu::store(result + i, Rule::last(sum, divisor));
    }
    if (i == count) return;
    T rest[kWidth] = {};
    const size_t bytes = (count - i) * sizeof(T);
    std::memcpy(rest, input(0) + i, bytes);
    Vec sum = cpu::load(rest);
    for (uint32_t rank = 1; rank < ranks; ++rank) {
        std::memcpy(rest, input(rank) + i, bytes);
        sum = Rule::next(sum, cpu::load(rest));
    }
    cpu::store(rest, Rule::last(sum, divisor));
    std::memcpy(result + i, rest, bytes);
}

template <typename T>
Reduction of_vectors(Op op) {
    switch (op) {
        case kSum:
            return reduce_vectors<T, VecSum>;
        case kProduct:
            return reduce_vectors<T, VecProduct>;
        case kMin:
            return reduce_vectors<T, VecMin>;
        case kMax:
            return reduce_vectors<T, VecMax>;
        case kAverage:
            return reduce_vectors<T, VecAverage>;
        default:
            return nullptr;
    }
}

struct Sum {
    static double next(double a, double b) { return a + b; }
};
struct Product {
    static double next(double a, double b) { return a * b; }
};
struct Min {
    static double next(double a, double b) { return a != a || a < b ? a : b; }
};
struct Max {
    static double next(double a, double b) { return a != a || a > b ? a : b; }
};

void average_doubles(void* out, const void* const* inputs, uint32_t ranks, size_t count) {
    reduce_each<double, Sum>(out, inputs, ranks, count);
    double* result = static_cast<double*>(out);
    for (size_t i = 0; i < count; ++i) result[i] /= ranks;
}

Reduction of_doubles(Op op) {
    switch (op) {
        case kSum:
            return reduce_each<double, Sum>;
        case kProduct:
            return reduce_each<double, Product>;
        case kMin:
            return reduce_each<double, Min>;
        case kMax:
            return reduce_each<double, Max>;
        case kAverage:
            return average_doubles;
        default:
            return nullptr;
    }
}

}  // namespace

Reduction reduction_of_floats(DType dtype, Op op) {
    switch (dtype) {
        case kF64:
            return of_doubles(op);
        case kF32:
            return of_vectors<float>(op);
        case kBF16:
            return of_vectors<BFloat16>(op);
        case kF16:
            return of_vectors<Float16>(op);
        default:
            return nullptr;
    }
}

}  // namespace opforge::shm
