#pragma once

// The scores of a tile: which keys it has, and its products, biases and masks. Scores lie as [key][query], so that
// each vector has one key and several queries: sums over keys need no sum within a vector.

#include <cmath>
#include <memory>

#include "../cpu/update.h"
#include "attention.h"
#include "tiles.h"

namespace opforge::cpu {

// Neighbouring keys of a tile.
struct KeyRun {
    int64_t begin, count, at;  // the first key, how many, the place of the first in the tile
};

struct KeyTile {
    KeyRun runs[kTile];
    int64_t run_count, count;
};

// One head of one batch.
struct Head {
    int64_t outer, inner, head;

    template <typename Strides>
    int64_t offset(const Strides& strides) const {
        return outer * strides.outer + inner * strides.inner + head * strides.head;
    }
    int64_t number(const Attention& call) const { return (outer * call.inner + inner) * call.heads + head; }
};

inline Head head_of(const Attention& call, int64_t number) {
    return {number / (call.heads * call.inner), number / call.heads % call.inner, number % call.heads};
}

inline char* row_of(const HeadRows& rows, const Head& head, int64_t row) {
    const int64_t size = rows.dtype == DType::Float32 ? 4 : 2;
    return static_cast<char*>(rows.data) + (head.offset(rows) + row * rows.row) * size;
}

// Queries of a tile. A tile lies within one block of a list.
inline int64_t tile_queries(const Attention& call) {
    return call.blocks.offsets ? std::min(kTile, call.blocks.block) : kTile;
}
inline int64_t query_tiles(const Attention& call) {
    return (call.queries + tile_queries(call) - 1) / tile_queries(call);
}

// Yields the keys that the queries [begin, end) of a head see, a tile at a time.
class KeyTiles {
public:
    KeyTiles(const Attention& call, const Head& head, int64_t begin, int64_t end)
        : blocks_(call.blocks), limit_(call.causal ? std::min(call.keys, end) : call.keys) {
        if (!blocks_.offsets) {
            end_ = limit_;
            return;
        }
        const int64_t rows = (call.queries + blocks_.block - 1) / blocks_.block;
        const int64_t row = head.head * rows + begin / blocks_.block;
        next_ = blocks_.offsets[row];
        last_ = blocks_.offsets[row + 1];
    }

    bool next(KeyTile& tile) {
        tile.count = tile.run_count = 0;
        while (tile.count < kTile) {
            if (at_ >= end_) {
                if (next_ == last_) break;
                at_ = blocks_.columns[next_++] * blocks_.block;
                end_ = std::min(at_ + blocks_.block, limit_);
                continue;
            }
            const int64_t count = std::min(kTile - tile.count, end_ - at_);
            KeyRun* const before = tile.run_count > 0 ? &tile.runs[tile.run_count - 1] : nullptr;
            if (before && before->begin + before->count == at_) {
                before->count += count;
            } else {
                tile.runs[tile.run_count++] = {at_, count, tile.count};
            }
            at_ += count;
            tile.count += count;
        }
        return tile.count > 0;
    }

private:
    BlockList blocks_;
    int64_t limit_, at_ = 0, end_ = 0, next_ = 0, last_ = 0;
};

// Rows of keys or values as floats: packed, or where they are.
struct Rows {
    const float* data;
    int64_t stride;
};

inline Rows rows_of(const HeadRows& rows, const Head& head, const KeyTile& tile, int64_t size, float* buffer) {
    if (rows.dtype == DType::Float32 && tile.run_count == 1 && rows.row == size) {
        return {reinterpret_cast<const float*>(row_of(rows, head, tile.runs[0].begin)), size};
    }
    const int64_t stride = whole_vectors(size);
    for (int64_t i = 0; i < tile.run_count; ++i) {
        const KeyRun& run = tile.runs[i];
        pack_rows(row_of(rows, head, run.begin), rows.dtype, rows.row, run.count, size, 1.0f, buffer + run.at * stride,
                  stride);
    }
    return {buffer, stride};
}

// Memory of one thread, which is aligned to vectors.
class Scratch {
public:
    explicit Scratch(int64_t floats) : memory_(new char[static_cast<size_t>(floats) * sizeof(float) + kAlign]) {
        reset();
    }
    void reset() {
        const auto address = reinterpret_cast<uintptr_t>(memory_.get());
        next_ = reinterpret_cast<float*>((address + kAlign - 1) / kAlign * kAlign);
    }
    // What take(floats) takes.
    static int64_t space(int64_t floats) { return (floats + 15) / 16 * 16; }
    float* take(int64_t floats) {
        float* const memory = next_;
        next_ += space(floats);
        return memory;
    }

private:
    static constexpr size_t kAlign = 64;
    std::unique_ptr<char[]> memory_;
    float* next_ = nullptr;
};

inline Vec as_bias(Vec x, bool multiplied) {
    if (!multiplied) return x;
    const Vec hidden(-kInfinity), shown(0.0f);
    return select_nan(x, shown, select_zero_or_nan(x, hidden, shown));
}

// Adds a bias that each query has a row of: [query][key], so squares of it are transposed.
template <typename T>
void add_rows(const T* bias, const ScoreBias& form, int64_t begin, int64_t queries, const KeyRun& run, float* scores,
              int64_t lanes) {
    const T* const first = bias + begin * form.query + run.begin;
    for (int64_t key = 0; key < run.count; key += kWidth) {
        const int64_t keys = std::min(kWidth, run.count - key);
        for (int64_t query = 0; query < queries; query += kWidth) {
            Vec square[kWidth];
            for (int64_t i = 0; i < kWidth; ++i) {
                square[i] = Vec(0.0f);
                if (query + i >= queries) continue;
                const T* const from = first + (query + i) * form.query + key;
                if (keys == kWidth) {
                    square[i] = load(from);
                } else {
                    T part[kWidth] = {};
                    std::memcpy(part, from, static_cast<size_t>(keys) * sizeof(T));
                    square[i] = load(part);
                }
            }
            transpose(square);
            for (int64_t i = 0; i < keys; ++i) {
                float* const at = scores + (run.at + key + i) * lanes + query;
                store(at, load(at) + as_bias(square[i], form.multiplied));
            }
        }
    }
}

// Adds a bias that all queries share: a number for each key.
template <typename T>
void add_keys(const T* bias, bool multiplied, const KeyRun& run, float* scores, int64_t lanes) {
    float numbers[kTile + kWidth];
    to_floats(bias + run.begin, run.count, numbers);
    for (int64_t i = 0; i < run.count; ++i) {
        const Vec number = as_bias(Vec(numbers[i]), multiplied);
        float* const at = scores + (run.at + i) * lanes;
        for (int64_t lane = 0; lane < lanes; lane += kWidth) store(at + lane, load(at + lane) + number);
    }
}

// Writes the scores [key][query] of the queries [begin, begin + queries), whose scaled vectors are `columns`, [element]
// [query]. `lanes` are the queries as whole vectors; what lies behind the last query is not used.
inline void compute_scores(const Attention& call, const Head& head, int64_t begin, int64_t queries, const KeyTile& tile,
                           const Rows& keys, const float* columns, int64_t lanes, float* scores) {
    multiply(tile.count, lanes, call.size, keys.data, keys.stride, 1, columns, lanes, scores, lanes, false);
    for (int i = 0; i < call.bias_count; ++i) {
        const ScoreBias& bias = call.biases[i];
        with_elements(bias.dtype, const_cast<void*>(bias.data), [&](const auto* data) {
            for (int64_t r = 0; r < tile.run_count; ++r) {
                if (bias.query != 0) {
                    add_rows(data + head.offset(bias), bias, begin, queries, tile.runs[r], scores, lanes);
                } else {
                    add_keys(data + head.offset(bias), bias.multiplied, tile.runs[r], scores, lanes);
                }
            }
        });
    }
    if (!call.causal) return;
    for (int64_t r = 0; r < tile.run_count; ++r) {
        const KeyRun& run = tile.runs[r];
        for (int64_t i = std::max<int64_t>(0, begin + 1 - run.begin); i < run.count; ++i) {
            float* const at = scores + (run.at + i) * lanes;
            std::fill_n(at, std::min(lanes, run.begin + i - begin), -kInfinity);
        }
    }
}

}  // namespace opforge::cpu
