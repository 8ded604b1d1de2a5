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

// Of each lane the mean of the blocks before, and the sum of the squares of the differences from it; of an RMS norm the
// squares' sum alone, with a mean of 0. Of the block that is being read: the sums of the values' differences from that
// mean, of their squares, and of what rounding took from the differences' sum: the mean's error is that of every result
// near 0. Rounding results to 16 bits hides it.
struct Moments {
    Pair mean = Pair(0.0f), squares = Pair(0.0f);
    Pair block = Pair(0.0f), block_squares = Pair(0.0f), lost = Pair(0.0f);

    // Adds the difference of a value. With kCompensated it keeps what rounding takes, as Kahan's rule does.
    template <bool kCompensated>
    void add(Pair x) {
        const Pair sum = block + x;
        if (kCompensated) lost = lost + (x - (sum - block));
        block = sum;
    }

    // Adds the block to what is before it; then there are `count` values. This is Welford's rule for many values at
    // once: for n values and a sum S of differences the mean moves by S / n, and the squares shrink by S * S / n.
    void end_block(Pair count) {
        block = block + lost;
        const Pair step = block / count;
        mean = mean + step;
        squares = squares + (block_squares - block * step);
        block = block_squares = lost = Pair(0.0f);
    }
};

// Normalizes rows of type T, or with kSummed their sums with the residual. While a row is written the next one is read,
// line by line, so that the memory always has work.
template <bool kCentred, bool kSummed, typename T>
class NormRows {
public:
    explicit NormRows(const Norm& norm)
        : norm_(norm),
          columns_(norm.in.size(-1)),
          counts_(Pair(static_cast<float>(columns_ / Pair::kWidth)) + ones<T>(columns_ % Pair::kWidth)),
          sums_(kSummed ? static_cast<size_t>(columns_ + Pair::kWidth) : 0),
          streamed_(kShifts ? streams(norm.out.numel * norm.out.item) : streams_rows(norm.out, columns_)),
          sum_streamed_(norm.sum.data && streams_rows(norm.sum, columns_)) {}

    // All that it calls is inlined, so that the moments stay in registers. In memory they would be stored for each
    // pair.
    [[gnu::flatten]] void normalize(int64_t begin, int64_t end) {
        Moments moments = read(begin);
        for (int64_t row = begin; row < end; ++row) {
            find_scale(moments, row);
            const int64_t shift = first_line(row);
            const auto write = writer(row, shift);
            write_edges(row, shift);
            if (row + 1 == end) {
                each_pair<T>(0, columns_, write);
            } else {
                moments = read(row + 1, write);
            }
        }
        if (streamed_ || sum_streamed_) end_streams();
    }

private:
    // Whether results may be written at other places than pairs were read from. Sums of bfloat16 are kept in the order
    // of the lanes.
    static constexpr bool kShifts = !kSummed || !std::is_same_v<T, BFloat16>;

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

    // Reads a row and returns its moments. The sum with the residual is kept in floats. `write` is what writes the row
    // before, if there is one.
    template <typename... Write>
    Moments read(int64_t row, const Write&... write) {
        constexpr int64_t kBlock = 32 * Pair::kWidth;
        const T *const in = row_of<const T>(norm_.in, row), *const residual = row_of<const T>(norm_.residual, row);
        const auto value = [=](int64_t k, auto left) {
            return kSummed ? load_pair(in + k, left) + load_pair(residual + k, left) : load_pair(in + k, left);
        };
        Moments moments;
        if (kCentred) moments.mean = value(0, columns_);
        const auto add = [=, &moments, sum = row_of<T>(norm_.sum, row), sums = sums_.data(), streamed = sum_streamed_](
                             int64_t k, auto left) {
            fetch(in + k);
            if (kSummed) fetch(residual + k);
            Pair x = value(k, left);
            if (kSummed) store_pair(sums + k, x);
            if (kSummed && sum) store_pair(sum + k, x, left, streamed);
            if (kCentred) {
                x = x - moments.mean;
                if (left < Pair::kWidth) x = x * ones<T>(left);
                moments.template add<std::is_same_v<T, float>>(x);
            }
            moments.block_squares = fma(x, x, moments.block_squares);
        };
        for (int64_t k = 0, end; k < columns_; k = end) {
            end = std::min(k + kBlock, columns_);
            each_pair<T>(k, end, write..., add);
            moments.end_block(end < columns_ ? Pair(static_cast<float>(end / Pair::kWidth))
                                             : larger(counts_, Pair(1.0f)));
        }
        return moments;
    }

    // Returns what returns a pair of the row that was read.
    auto values(int64_t row) const {
        return [in = row_of<const T>(norm_.in, row), sums = sums_.data()](int64_t k, auto left) {
            return kSummed ? load_pair(sums + k) : load_pair(in + k, left);
        };
    }

    // Computes the mean and the scale of the row that was read, in doubles.
    void find_scale(Moments moments, int64_t row) {
        const auto count = static_cast<double>(columns_);
        double mean = 0.0;
        if (kCentred) {
            mean = sum_of(counts_ * moments.mean) / count;
            // Products of large means were rounded: those of the differences are small. A row of equal values has none.
            const auto rounded = static_cast<float>(mean);
            mean = rounded + sum_of(counts_ * (moments.mean - Pair(rounded))) / count;
            const Pair difference = moments.mean - Pair(static_cast<float>(mean));
            moments.squares = fma(counts_ * difference, difference, moments.squares);
        }
        double squares = sum_of(moments.squares);
        if (!std::isfinite(mean + squares)) read_again(row, mean, squares);
        mean_ = static_cast<float>(mean);
        const double scale = 1.0 / std::sqrt(squares / count + norm_.eps);
        scale_ = with_default_nan(static_cast<float>(scale));  // eps may be any NaN
    }

    // The sums of the row that was read, if they are larger than the largest float, as of values above 1e19; or if
    // there is a NaN.
    [[gnu::cold, gnu::noinline]] void read_again(int64_t row, double& mean, double& squares) const {
        const auto sum_of_each = [&, value = values(row)](const auto& term) {
            double sum = 0.0;
            for (int64_t k = 0; k < columns_; k += Pair::kWidth) {
                const int64_t left = std::min<int64_t>(Pair::kWidth, columns_ - k);
                const Pair x = value(k, left), is_value = ones<T>(left);
                float lanes[2 * Pair::kWidth];
                float* lane = lanes;
                for (const Vec& part : {x.first, x.second, is_value.first, is_value.second}) {
                    store(lane, part);
                    lane += Vec::kWidth;
                }
                for (int64_t i = 0; i < Pair::kWidth; ++i) {
                    if (lanes[Pair::kWidth + i] != 0.0f) sum += term(static_cast<double>(lanes[i]));
                }
            }
            return sum;
        };
        mean = kCentred ? sum_of_each([](double x) { return x; }) / static_cast<double>(columns_) : 0.0;
        squares = sum_of_each([&](double x) { return (x - mean) * (x - mean); });
    }

    // The values of a row before the first whole line, if lines are streamed.
    int64_t first_line(int64_t row) const {
        if (!streamed_ || !kShifts) return 0;
        const auto address = reinterpret_cast<uintptr_t>(row_of<T>(norm_.out, row));
        return std::min<int64_t>(columns_, (kLine - address % kLine) % kLine / sizeof(T));
    }

    // Returns what computes `left` results, or a pair, of the row that was read.
    auto result(int64_t row) const {
        const T *const gamma = norm_.gamma.as<const T>(), *const beta = norm_.beta.as<const T>();
        return [=, value = values(row), mean = Pair(mean_), scale = Pair(scale_)](int64_t k, auto left) {
            const Pair x = value(k, left), factor = load_pair(gamma + k, left);
            return kCentred ? fma((x - mean) * scale, factor, load_pair(beta + k, left)) : x * scale * factor;
        };
    }

    // Returns what writes a pair of the row that was read, `shift` values behind the pair that is read.
    auto writer(int64_t row, int64_t shift) const {
        return [result = result(row), out = row_of<T>(norm_.out, row) + shift, end = columns_ - Pair::kWidth - shift,
                shift, streamed = streamed_](int64_t k, auto) {
            constexpr std::integral_constant<int64_t, Pair::kWidth> kWhole;
            if (k <= end) store_pair(out + k, result(k + shift, kWhole), streamed);
        };
    }

    // Writes the values before the first pair, and behind the last whole one. It comes before the next row is read,
    // which replaces the sums.
    void write_edges(int64_t row, int64_t shift) const {
        const auto result = this->result(row);
        T* const out = row_of<T>(norm_.out, row);
        for (int64_t k = 0; k < shift; k += Pair::kWidth) {
            const int64_t left = std::min<int64_t>(shift - k, Pair::kWidth);
            store_pair(out + k, result(k, left), left, false);
        }
        const int64_t last = columns_ - (columns_ - shift) % Pair::kWidth;
        if (last < columns_) store_pair(out + last, result(last, columns_ - last), columns_ - last, false);
    }

    const Norm& norm_;
    const int64_t columns_;
    const Pair counts_;  // the values of each lane
    std::vector<float> sums_;
    const bool streamed_, sum_streamed_;  // large results are written past the caches, line by line
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
