#include "query_tile.h"

namespace opforge::cpu {
namespace {

void write_log_sums(const Attention& call, const QueryTile& tile, float* log_sums) {
    for (int64_t i = 0; i < tile.queries; ++i) {
        const float sum = tile.sums[i];
        const double largest = tile.largest[i], log = std::log(static_cast<double>(sum));
        log_sums[i] = sum == 0.0f ? -kInfinity : static_cast<float>(largest + log);
        if (call.keeps_remainders()) {
            // Beside the lowest number of a mask also a double would lose the logarithm.
            log_sums[call.queries + i] = sum == 0.0f ? 0.0f : static_cast<float>((largest - log_sums[i]) + log);
        }
    }
}

void forward_tile(const Attention& call, const HeadRows& out, const Head& head, int64_t begin, Scratch& scratch) {
    scratch.reset();
    const int64_t queries = std::min(tile_queries(call), call.queries - begin), size = call.size;
    QueryTile tile(scratch, queries, size);
    float* const key_rows = scratch.take(kTile * tile.stride);
    float* const value_rows = scratch.take(kTile * tile.stride);
    float* const scores = scratch.take(kTile * kTile);
    pack_rows(row_of(call.q, head, begin), call.q.dtype, call.q.row, queries, size, call.scale, tile.rows, tile.stride);
    tile.start();

    KeyTile keys;
    KeyTiles tiles(call, head, begin, begin + queries);
    while (tiles.next(keys)) {
        const Rows rows = rows_of(call.k, head, keys, size, key_rows);
        compute_scores(call, head, begin, queries, keys, rows, tile.columns, tile.lanes, scores);
        tile.add(scores, keys.count, rows_of(call.v, head, keys, size, value_rows));
    }

    write_log_sums(call, tile, call.log_sums + head.number(call) * call.log_sum_stride + begin);
    tile.finish();
    unpack_rows(tile.rows, tile.stride, queries, size, row_of(out, head, begin), out.dtype, out.row);
}

}  // namespace

void attention_forward(const Attention& call, const HeadRows& out) {
    const int64_t tiles = query_tiles(call), stride = whole_vectors(call.size);
    const int64_t total = call.outer * call.inner * call.heads * tiles;
    const int64_t products = std::max<int64_t>(1, tile_queries(call) * std::min<int64_t>(call.keys, 4096) * call.size);
    const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 19) / products);
    share(call.executor, total, grain, [&](int64_t from, int64_t to) {
        Scratch scratch(QueryTile::floats(call.size) + 2 * kTile * stride + kTile * kTile + 3 * 16);
        for (int64_t i = from; i < to; ++i) {
            forward_tile(call, out, head_of(call, i / tiles), i % tiles * tile_queries(call), scratch);
        }
    });
}

}  // namespace opforge::cpu
