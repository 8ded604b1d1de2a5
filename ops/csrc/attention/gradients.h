#pragma once

// The gradients of the scores of a tile, which all passes of the backward begin with.

#include "scores.h"

namespace opforge::cpu {

// A tile of queries with what its gradients need, as rows [query][element] and as columns [element][query].
struct QueryTile {
    int64_t begin, queries, lanes;
    float *rows, *columns, *gradients, *gradient_columns;
    float *log_sums, *remainders, *deltas;
};

// The powers and the gradients of the scores of a tile, [key][query].
struct ScoreTile {
    float *powers, *gradients;
};

inline QueryTile take_queries(int64_t stride, Scratch& scratch) {
    QueryTile tile{};
    for (float** data : {&tile.rows, &tile.columns, &tile.gradients, &tile.gradient_columns}) {
        *data = scratch.take(kTile * stride);
    }
    tile.log_sums = scratch.take(kTile);
    tile.remainders = scratch.take(kTile);
    tile.deltas = scratch.take(kTile);
    return tile;
}

inline void load_queries(const Attention& call, const AttentionGradient& gradient, const Head& head, int64_t begin,
                         QueryTile& tile) {
    const int64_t size = call.size, stride = whole_vectors(size);
    tile.begin = begin;
    tile.queries = std::min(tile_queries(call), call.queries - begin);
    tile.lanes = whole_vectors(tile.queries);
    const auto fill = [&](const HeadRows& from, float scale, float* rows, float* columns) {
        pack_rows(row_of(from, head, begin), from.dtype, from.row, tile.queries, size, scale, rows, stride);
        clear(rows + tile.queries * stride, (tile.lanes - tile.queries) * stride);
        transpose(rows, stride, tile.lanes, stride, columns, tile.lanes);
    };
    fill(call.q, call.scale, tile.rows, tile.columns);
    fill(gradient.dout, 1.0f, tile.gradients, tile.gradient_columns);
    const int64_t at = head.number(call) * call.log_sum_stride + begin;
    std::copy_n(call.log_sums + at, tile.queries, tile.log_sums);
    clear(tile.remainders, tile.lanes);
    if (call.keeps_remainders()) std::copy_n(call.log_sums + at + call.queries, tile.queries, tile.remainders);
    std::copy_n(gradient.deltas + at, tile.queries, tile.deltas);
    // Behind the last query all powers become 0.
    std::fill(tile.log_sums + tile.queries, tile.log_sums + tile.lanes, kInfinity);
    std::fill(tile.deltas + tile.queries, tile.deltas + tile.lanes, 0.0f);
}

inline void compute_gradients(const Attention& call, const Head& head, const QueryTile& queries, const KeyTile& keys,
                              const Rows& key_rows, const Rows& value_rows, const ScoreTile& scores) {
    const int64_t lanes = queries.lanes;
    compute_scores(call, head, queries.begin, queries.queries, keys, key_rows, queries.columns, lanes, scores.powers);
    multiply(keys.count, lanes, call.size, value_rows.data, value_rows.stride, 1, queries.gradient_columns, lanes,
             scores.gradients, lanes, false);
    const Vec lowest(std::numeric_limits<float>::lowest());
    for (int64_t lane = 0; lane < lanes; lane += kWidth) {
        const Vec base = larger(lowest, load(queries.log_sums + lane)), delta = load(queries.deltas + lane);
        const Vec remainder = load(queries.remainders + lane);
        for (int64_t key = 0; key < keys.count; ++key) {
            float *const power = scores.powers + key * lanes + lane, *const at = scores.gradients + key * lanes + lane;
            const Vec x = exp(load(power) - base - remainder);
            store(power, x);
            store(at, x * (load(at) - delta));
        }
    }
}

// The floats that a thread of the backward needs beside its sums.
inline int64_t scratch_size(int64_t stride) { return 8 * kTile * stride + 4 * kTile * kTile + 3 * kTile + 32 * 16; }

}  // namespace opforge::cpu
