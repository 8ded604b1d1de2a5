#pragma once

// Tiles of float matrices: packing rows of any dtype, and products of tiles.

#include "lanes.h"

namespace opforge::cpu {

constexpr int64_t kTile = 64;  // queries of a tile, and keys
// How many of `count` products are added up one after the other. The sums of such series are added up then: rounding
// errors grow with the number of both. Short series take longer: of 8, a tenth of the time of a large product.
inline int64_t series_of(int64_t count) { return count <= 16 ? 8 : 32; }

template <int kRows, int kVecs>
void multiply_part(int64_t inner, const float* a, int64_t row, int64_t column, const float* b, int64_t b_stride,
                   float* c, int64_t c_stride, bool add) {
    const int64_t series = series_of(inner);
    for (int64_t begin = 0; begin == 0 || begin < inner; begin += series) {
        Vec sums[kRows][kVecs];
        for (int i = 0; i < kRows; ++i) {
            for (int j = 0; j < kVecs; ++j) sums[i][j] = Vec(0.0f);
        }
        const int64_t end = std::min(begin + series, inner);
        for (int64_t k = begin; k < end; ++k) {
            Vec right[kVecs];
            for (int j = 0; j < kVecs; ++j) right[j] = load(b + k * b_stride + j * kWidth);
            for (int i = 0; i < kRows; ++i) {
                const Vec left(a[i * row + k * column]);
                for (int j = 0; j < kVecs; ++j) sums[i][j] = fma(left, right[j], sums[i][j]);
            }
        }
        for (int i = 0; i < kRows; ++i) {
            for (int j = 0; j < kVecs; ++j) {
                float* const to = c + i * c_stride + j * kWidth;
                store(to, add || begin > 0 ? load(to) + sums[i][j] : sums[i][j]);
            }
        }
    }
}

template <int kRows, int kVecs>
void multiply_rows(int64_t rows, int64_t inner, const float* a, int64_t row, int64_t column, const float* b,
                   int64_t b_stride, float* c, int64_t c_stride, bool add) {
    int64_t i = 0;
    for (; i + kRows <= rows; i += kRows) {
        multiply_part<kRows, kVecs>(inner, a + i * row, row, column, b, b_stride, c + i * c_stride, c_stride, add);
    }
    for (; i < rows; ++i) {
        multiply_part<1, kVecs>(inner, a + i * row, row, column, b, b_stride, c + i * c_stride, c_stride, add);
    }
}

// c = a b, or c += a b with `add`. `a` is [rows][inner], its element (i, k) at i * row + k * column; `b` is
// [inner][width] and `c` is [rows][width], and `width` is a whole number of vectors. Numbers of `a` are repeated over
// the lanes, so neither operand has to be transposed. The sum of a series is made apart from `c`.
inline void multiply(int64_t rows, int64_t width, int64_t inner, const float* a, int64_t row, int64_t column,
                     const float* b, int64_t b_stride, float* c, int64_t c_stride, bool add) {
    constexpr int kVecs = kWidth == 16 ? 4 : 2;  // 16 or 8 sums, which fit the registers
    int64_t j = 0;
    for (; j + kVecs * kWidth <= width; j += kVecs * kWidth) {
        multiply_rows<4, kVecs>(rows, inner, a, row, column, b + j, b_stride, c + j, c_stride, add);
    }
    for (; kVecs > 2 && j + 2 * kWidth <= width; j += 2 * kWidth) {
        multiply_rows<8, 2>(rows, inner, a, row, column, b + j, b_stride, c + j, c_stride, add);
    }
    for (; j < width; j += kWidth) {
        multiply_rows<8, 1>(rows, inner, a, row, column, b + j, b_stride, c + j, c_stride, add);
    }
}

// Converts rows to floats, multiplied by `scale`. Each row of the result has whole vectors, filled with zeros.
inline void pack_rows(const void* data, DType dtype, int64_t stride, int64_t rows, int64_t size, float scale, float* to,
                      int64_t to_stride) {
    with_dtype(dtype, [&](auto type) {
        const auto* from = static_cast<const typename decltype(type)::type*>(data);
        for (int64_t i = 0; i < rows; ++i) to_floats(from + i * stride, size, to + i * to_stride);
    });
    if (scale == 1.0f) return;
    for (int64_t i = 0; i < rows; ++i) {
        float* const at = to + i * to_stride;
        for (int64_t k = 0; k < size; k += kWidth) store(at + k, load(at + k) * Vec(scale));
    }
}

inline void unpack_rows(const float* from, int64_t from_stride, int64_t rows, int64_t size, void* data, DType dtype,
                        int64_t stride) {
    with_dtype(dtype, [&](auto type) {
        auto* const to = static_cast<typename decltype(type)::type*>(data);
        for (int64_t i = 0; i < rows; ++i) from_floats(from + i * from_stride, size, to + i * stride);
    });
}

inline void clear(float* data, int64_t count) { std::memset(data, 0, static_cast<size_t>(count) * sizeof(float)); }

}  // namespace opforge::cpu
