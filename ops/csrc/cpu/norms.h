#pragma once

// Layer norm and RMS norm of rows, with the sum of a residual in the same pass.

#include <cmath>
#include <vector>

#include "rows.h"

namespace opforge::cpu {

// The operands of a norm. `residual`, `sum` and `beta` may be absent. Outputs may be the inputs' own memory.
struct Norm {
    Dense out, sum, in, residual, gamma, beta;
    float eps;
};

// Returns the sum of term(x) over `count` values, whose vectors are source(k, left), in four sums that do not wait for
// each other.
template <typename Source, typename Term>
float sum_of_terms(int64_t count, const Source& source, const Term& term) {
    constexpr int64_t kSums = 4, kWidth = Vec::kWidth;
    Vec sums[kSums] = {Vec(0.0f), Vec(0.0f), Vec(0.0f), Vec(0.0f)};
    const std::integral_constant<int64_t, kWidth> whole;
    int64_t k = 0;
    for (; k + kSums * kWidth <= count; k += kSums * kWidth) {
        for (int64_t i = 0; i < kSums; ++i) sums[i] = sums[i] + term(source(k + i * kWidth, whole));
    }
    for (; k + kWidth <= count; k += kWidth) sums[0] = sums[0] + term(source(k, whole));
    float total = sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
    if (k == count) return total;
    float last[kWidth];
    store(last, term(source(k, count - k)));
    for (int64_t i = 0; i < count - k; ++i) total += last[i];
    return total;
}

// Normalizes a row whose vectors are source(k, left). fetch(k) fetches the next row meanwhile.
template <bool kCentred, typename T, typename Source, typename Fetch>
void normalize_row(const Norm& norm, T* out, int64_t columns, bool streamed, const Source& source, const Fetch& fetch) {
    const auto count = static_cast<float>(columns);
    const float mean = kCentred ? sum_of_terms(columns, source, [](Vec x) { return x; }) / count : 0.0f;
    const Vec centre(mean);
    const auto square = [centre](Vec x) { return kCentred ? (x - centre) * (x - centre) : x * x; };
    const Vec scale(1.0f / std::sqrt(sum_of_terms(columns, source, square) / count + norm.eps));
    const T* const gamma = norm.gamma.as<const T>();
    const T* const beta = norm.beta.as<const T>();
    write_row(out, columns, streamed, [=](int64_t k, auto left) {
        fetch(k);
        const Vec x = (kCentred ? source(k, left) - centre : source(k, left)) * scale;
        const Vec factor = load_some(gamma + k, left);
        return kCentred ? fma(x, factor, load_some(beta + k, left)) : x * factor;
    });
}

// Normalizes a row of floats, or the sum of two, for which `row` has space for whole vectors. Large results are written
// past the caches: `streamed`.
template <bool kCentred, typename T>
void normalize_row(const Norm& norm, float* row, int64_t at, int64_t columns, bool streamed) {
    const T* const in = norm.in.as<const T>() + at;
    T* const out = norm.out.as<T>() + at;
    if (!norm.residual.data) {
        const auto source = [in](int64_t k, auto left) { return load_some(in + k, left); };
        const auto fetch = [=](int64_t k) { __builtin_prefetch(in + columns + k); };
        return normalize_row<kCentred>(norm, out, columns, streamed, source, fetch);
    }
    const T* const residual = norm.residual.as<const T>() + at;
    const auto sum = [=](int64_t k, auto left) {
        const Vec x = load_some(in + k, left) + load_some(residual + k, left);
        store(row + k, x);
        return x;
    };
    if (norm.sum.data) {
        write_row(norm.sum.as<T>() + at, columns, streamed, sum);
    } else {
        each_vector(columns, sum);
    }
    const auto source = [row](int64_t k, auto) { return load(row + k); };
    normalize_row<kCentred>(norm, out, columns, streamed, source, [=](int64_t k) {
        __builtin_prefetch(in + columns + k);
        __builtin_prefetch(residual + columns + k);
    });
}

// Calls visit(k, left, i) for the vectors of `count` elements. `i` is 0 to 3 in turn: the number of one of four sums.
template <typename Visit>
void each_vector_by_four(int64_t count, const Visit& visit) {
    constexpr int64_t kWidth = Vec::kWidth;
    const std::integral_constant<int64_t, kWidth> whole;
    int64_t k = 0;
    for (; k + 4 * kWidth <= count; k += 4 * kWidth) {
        for (int64_t i = 0; i < 4; ++i) visit(k + i * kWidth, whole, i);
    }
    for (; k + kWidth <= count; k += kWidth) visit(k, whole, 0);
    if (k < count) visit(k, count - k, 0);
}

// A row, or the sum of two, while it is read: its sum if kCentred, or the sum of its squares. The sum of two rows is
// kept in floats, and written to norm.sum.
template <bool kCentred, bool kAdds, typename T>
struct RowAhead {
    const T *in, *residual;
    float* kept;  // has space for whole vectors
    T* total;     // null if the sum of two rows is not wanted
    Vec sums[4];

    void begin(const Norm& norm, int64_t at, float* space) {
        in = norm.in.as<const T>() + at;
        residual = kAdds ? norm.residual.as<const T>() + at : nullptr;
        kept = space;
        total = norm.sum.data ? norm.sum.as<T>() + at : nullptr;
        for (Vec& sum : sums) sum = Vec(0.0f);
    }
    // Reads vector k. Elements beyond the row are 0.
    template <typename Left>
    Vec take(int64_t k, Left left, Vec* total_of, int64_t i) const {
        constexpr int64_t kAhead = 4096 / sizeof(T);
        __builtin_prefetch(in + k + kAhead);
        if constexpr (kAdds) __builtin_prefetch(residual + k + kAhead);
        Vec x = load_some(in + k, left);
        if constexpr (kAdds) {
            x = x + load_some(residual + k, left);
            store(kept + k, x);
        }
        total_of[i] = kCentred ? total_of[i] + x : fma(x, x, total_of[i]);
        return x;
    }
    float sum() const { return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3])); }
};

// Normalizes rows of bfloat16 or float16, whose conversions take as long as the memory. While a row is written, the
// next one is read: memory and arithmetic are busy together. Rows of floats are slower so: they take the first-level
// cache from each other.
template <bool kCentred, bool kAdds, typename T>
class RowNorm {
public:
    RowNorm(const Norm& norm, int64_t columns, bool streamed)
        : norm_(norm), columns_(columns), streamed_(streamed), space_(static_cast<size_t>(2 * padded())) {}

    void run(int64_t begin, int64_t end) {
        RowAhead<kCentred, kAdds, T> row, next;
        next.begin(norm_, begin * columns_, space_.data());
        each_block([&](int64_t at, int64_t count) { read(next, at, count); });
        for (int64_t i = begin; i < end; ++i) {
            row = next;
            const Scales scales = scales_of(row);
            T* const out = norm_.out.as<T>() + i * columns_;
            if (i + 1 == end) {
                each_block([&](int64_t at, int64_t count) { write<false>(row, next, scales, out, at, count); });
                continue;
            }
            next.begin(norm_, (i + 1) * columns_, row.kept == space_.data() ? row.kept + padded() : space_.data());
            each_block([&](int64_t at, int64_t count) { write<true>(row, next, scales, out, at, count); });
        }
    }

private:
    struct Scales {
        Vec centre, scale;
    };
    int64_t padded() const { return columns_ + Vec::kWidth; }

    template <typename Visit>
    void each_block(const Visit& visit) const {
        for (int64_t at = 0; at < columns_; at += kBlock) visit(at, std::min(kBlock, columns_ - at));
    }

    // Returns vector k of a row that was read.
    template <typename Left>
    static Vec read_again(const RowAhead<kCentred, kAdds, T>& row, int64_t k, Left left) {
        if constexpr (kAdds) return load(row.kept + k);
        return load_some(row.in + k, left);
    }

    Scales scales_of(const RowAhead<kCentred, kAdds, T>& row) const {
        const auto count = static_cast<float>(columns_);
        float squares = row.sum();
        Vec centre(0.0f);
        if constexpr (kCentred) {
            centre = Vec(squares / count);
            const auto source = [&row](int64_t k, auto left) { return read_again(row, k, left); };
            squares = sum_of_terms(columns_, source, [centre](Vec x) { return (x - centre) * (x - centre); });
        }
        return {centre, Vec(1.0f / std::sqrt(squares / count + norm_.eps))};
    }

    // Writes a block of the sum of two rows, unless it is streamed later from `block`.
    void read(RowAhead<kCentred, kAdds, T>& next, int64_t at, int64_t count) {
        alignas(64) T block[kBlock];
        each_vector_by_four(count, [&](int64_t k, auto left, int64_t i) {
            keep(next, next.take(at + k, left, next.sums, i), block, at, k, left);
        });
        finish(next.total, block, at, count);
    }

    template <typename Left>
    void keep(const RowAhead<kCentred, kAdds, T>& next, Vec x, T* block, int64_t at, int64_t k, Left left) const {
        if (!kAdds || !next.total) return;
        if (streamed_) {
            store(block + k, x);
        } else {
            store_some(next.total + at + k, x, left);
        }
    }

    void finish(T* to, const T* block, int64_t at, int64_t count) const {
        if (streamed_ && to) stream(to + at, block, count);
    }

    template <bool kReads>
    void write(const RowAhead<kCentred, kAdds, T>& row, RowAhead<kCentred, kAdds, T>& next, const Scales& scales,
               T* out, int64_t at, int64_t count) {
        alignas(64) T block[kBlock], total[kBlock];
        const auto from = row;  // copies: stores to memory cannot change them
        const auto to = next;
        Vec sums[4] = {next.sums[0], next.sums[1], next.sums[2], next.sums[3]};
        const Vec centre = scales.centre, scale = scales.scale;
        const bool streamed = streamed_;
        const T* const gamma = norm_.gamma.as<const T>() + at;
        const T* const beta = kCentred ? norm_.beta.as<const T>() + at : nullptr;
        each_vector_by_four(count, [&](int64_t k, auto left, int64_t i) {
            const Vec x = read_again(from, at + k, left) - centre;
            const Vec factor = load_some(gamma + k, left), y = x * scale;
            const Vec result = kCentred ? fma(y, factor, load_some(beta + k, left)) : y * factor;
            if constexpr (kReads) keep(to, to.take(at + k, left, sums, i), total, at, k, left);
            if (streamed) {
                store(block + k, result);
            } else {
                store_some(out + at + k, result, left);
            }
        });
        for (int64_t i = 0; i < 4; ++i) next.sums[i] = sums[i];
        finish(out, block, at, count);
        if constexpr (kReads && kAdds) finish(next.total, total, at, count);
    }

    const Norm& norm_;
    const int64_t columns_;
    const bool streamed_;
    std::vector<float> space_;
};

template <bool kCentred>
void normalize(const Norm& norm) {
    if (norm.in.numel == 0) return;
    const int64_t columns = norm.in.size(-1);
    with_dtype(norm.in.kind, [&](auto type) {
        using T = typename decltype(type)::type;
        const bool streamed = streams(norm.in.numel * norm.in.item);
        each_row(norm.in.numel / columns, columns * norm.in.item, [&](int64_t begin, int64_t end) {
            if constexpr (!std::is_same_v<T, float>) {
                if (norm.residual.data) {
                    RowNorm<kCentred, true, T>(norm, columns, streamed).run(begin, end);
                } else {
                    RowNorm<kCentred, false, T>(norm, columns, streamed).run(begin, end);
                }
            } else {
                std::vector<float> row(static_cast<size_t>(columns + Vec::kWidth));
                for (int64_t i = begin; i < end; ++i) {
                    normalize_row<kCentred, T>(norm, row.data(), i * columns, columns, streamed);
                }
            }
            if (streamed) end_streams();
        });
    });
}

}  // namespace opforge::cpu
