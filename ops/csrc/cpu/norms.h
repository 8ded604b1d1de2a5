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

// Of each lane the mean and the sum of the squares of the differences from it; of an RMS norm the squares' sum alone.
struct Moments {
    Pair mean = Pair(0.0f), squares = Pair(0.0f);
};

// Normalizes rows of type T, or with kSummed their sums with the residual. While a row is written the next one is read,
// pair by pair, so that the memory always has work.
template <bool kCentred, bool kSummed, typename T>
class NormRows {
public:
    explicit NormRows(const Norm& norm)
        : norm_(norm),
          columns_(norm.in.size(-1)),
          sums_(kSummed ? static_cast<size_t>(columns_ + Pair::kWidth) : 0),
          streamed_(streams_rows(norm.out, columns_) && (!norm.sum.data || streams_rows(norm.sum, columns_))) {}

    void normalize(int64_t begin, int64_t end) {
        Moments moments;
        each_pair(columns_, reader(begin, moments));
        for (int64_t row = begin; row < end; ++row) {
            find_scale(moments);
            const auto write = writer(row);
            moments = {};
            if (row + 1 == end) {
                each_pair(columns_, write);
            } else {
                each_pair(columns_, [write, read = reader(row + 1, moments)](int64_t k, auto left) {
                    write(k, left);
                    read(k, left);
                });
            }
        }
        if (streamed_) end_streams();
    }

private:
    // Fetches what is read later. The processor's own prefetching stops at the end of each page of 4 KiB.
    static void fetch(const T* data) {
        constexpr int64_t kAhead = 4096;  // bytes
        const char* const at = reinterpret_cast<const char*>(data) + kAhead;
        for (size_t k = 0; k < sizeof(T) * Pair::kWidth; k += kLine) __builtin_prefetch(at + k);
    }
    template <typename Tensor>
    auto* row_of(const Dense& tensor, int64_t row) const {
        return tensor.data ? tensor.as<Tensor>() + row * columns_ : nullptr;
    }

    // Returns what reads a pair of a row: it adds the values to the moments, by Welford's rule. The sum with the
    // residual is kept in floats.
    auto reader(int64_t row, Moments& moments) {
        const T *const in = row_of<const T>(norm_.in, row), *const residual = row_of<const T>(norm_.residual, row);
        return [=, &moments, sum = row_of<T>(norm_.sum, row), sums = sums_.data(), streamed = streamed_](int64_t k,
                                                                                                         auto left) {
            fetch(in + k);
            Pair x = load_pair(in + k, left);
            if constexpr (kSummed) {
                fetch(residual + k);
                x = x + load_pair(residual + k, left);
                store_pair(sums + k, x);
                if (sum) store_pair(sum + k, x, left, streamed);
            }
            if constexpr (kCentred) {
                Pair difference = x - moments.mean;
                if (left < Pair::kWidth) difference = difference * ones<T>(left);
                moments.mean = fma(difference, Pair(1.0f / static_cast<float>(k / Pair::kWidth + 1)), moments.mean);
                moments.squares = fma(difference, x - moments.mean, moments.squares);
            } else {
                moments.squares = fma(x, x, moments.squares);
            }
        };
    }

    // Returns what returns a pair of the row that was read.
    auto values(int64_t row) const {
        return [in = row_of<const T>(norm_.in, row), sums = sums_.data()](int64_t k, auto left) {
            return kSummed ? load_pair(sums + k) : load_pair(in + k, left);
        };
    }

    // Computes the mean and the scale of the row that was read.
    void find_scale(const Moments& moments) {
        const auto count = static_cast<float>(columns_);
        Pair squares = moments.squares;
        if (kCentred) {
            const int64_t whole = columns_ / Pair::kWidth, rest = columns_ % Pair::kWidth;
            const Pair counts = Pair(static_cast<float>(whole)) + ones<T>(rest);
            mean_ = sum_of(counts * moments.mean) / count;
            const Pair difference = moments.mean - Pair(mean_);
            squares = fma(counts * difference, difference, squares);
        }
        scale_ = 1.0f / std::sqrt(sum_of(squares) / count + norm_.eps);
    }

    // Returns what writes a pair of the row that was read.
    auto writer(int64_t row) const {
        const T *const gamma = norm_.gamma.as<const T>(), *const beta = norm_.beta.as<const T>();
        return [=, out = row_of<T>(norm_.out, row), value = values(row), mean = Pair(mean_), scale = Pair(scale_),
                streamed = streamed_](int64_t k, auto left) {
            const Pair x = value(k, left), factor = load_pair(gamma + k, left);
            const Pair y = kCentred ? fma((x - mean) * scale, factor, load_pair(beta + k, left)) : x * scale * factor;
            store_pair(out + k, y, left, streamed);
        };
    }

    const Norm& norm_;
    const int64_t columns_;
    std::vector<float> sums_;
    const bool streamed_;
    float mean_ = 0.0f, scale_ = 0.0f;
};

template <bool kCentred>
void normalize(const Norm& norm) {
    if (norm.in.numel == 0) return;
    const int64_t columns = norm.in.size(-1);
    with_dtype(norm.in.kind, [&](auto type) {
        using T = typename decltype(type)::type;
        each_row(norm.in.numel / columns, columns * norm.in.item, [&](int64_t begin, int64_t end) {
            if (norm.residual.data) {
                NormRows<kCentred, true, T>(norm).normalize(begin, end);
            } else {
                NormRows<kCentred, false, T>(norm).normalize(begin, end);
            }
        });
    });
}

}  // namespace opforge::cpu
