#include "scores.h"

namespace opforge::cpu {
namespace {

// The running state of a tile of queries: the largest score, the sum of powers, and the sum of values [element][query].
struct State {
    float* largest;
    float* sums;
    float* values;
};

// Turns scores into powers, and adapts the state to a larger score. Returns the factors in `factors`.
void update_state(float* scores, int64_t keys, int64_t lanes, const State& state, float* factors) {
    const Vec lowest(std::numeric_limits<float>::lowest());  // in place of -inf, of which no difference is a number
    for (int64_t lane = 0; lane < lanes; lane += kWidth) {
        const Vec before = load(state.largest + lane);
        Vec largest = before;
        for (int64_t key = 0; key < keys; ++key) largest = larger(largest, load(scores + key * lanes + lane));
        const Vec base = larger(lowest, largest);
        const Vec factor = exp(before - base);
        Vec sum(0.0f);
        for (int64_t key = 0; key < keys; ++key) {
            float* const at = scores + key * lanes + lane;
            const Vec power = exp(load(at) - base);
            store(at, power);
            sum = sum + power;
        }
        store(state.largest + lane, largest);
        store(state.sums + lane, fma(load(state.sums + lane), factor, sum));
        store(factors + lane, factor);
    }
}

void forward_tile(const Attention& call, const HeadRows& out, const Head& head, int64_t begin, Scratch& scratch) {
    scratch.reset();
    const int64_t queries = std::min(tile_queries(call), call.queries - begin), lanes = whole_vectors(queries);
    const int64_t size = call.size, stride = whole_vectors(size);
    float* const rows = scratch.take(kTile * stride);
    float* const columns = scratch.take(stride * kTile);
    float* const key_rows = scratch.take(kTile * stride);
    float* const value_rows = scratch.take(kTile * stride);
    float* const scores = scratch.take(kTile * kTile);
    float* const factors = scratch.take(kTile);
    const State state{scratch.take(kTile), scratch.take(kTile), scratch.take(stride * kTile)};

    pack_rows(row_of(call.q, head, begin), call.q.dtype, call.q.row, queries, size, call.scale, rows, stride);
    clear(rows + queries * stride, (lanes - queries) * stride);
    transpose(rows, stride, lanes, stride, columns, lanes);
    std::fill_n(state.largest, lanes, -kInfinity);
    clear(state.sums, lanes);
    clear(state.values, stride * lanes);

    KeyTile tile;
    KeyTiles tiles(call, head, begin, begin + queries);
    bool is_first = true;
    while (tiles.next(tile)) {
        const Rows keys = rows_of(call.k, head, tile, size, key_rows);
        compute_scores(call, head, begin, queries, tile, keys, columns, lanes, scores);
        update_state(scores, tile.count, lanes, state, factors);
        const bool is_scaled = !is_first && std::any_of(factors, factors + lanes, [](float x) { return x != 1.0f; });
        for (int64_t k = 0; is_scaled && k < size; ++k) {
            float* const at = state.values + k * lanes;
            for (int64_t lane = 0; lane < lanes; lane += kWidth) {
                store(at + lane, load(at + lane) * load(factors + lane));
            }
        }
        const Rows values = rows_of(call.v, head, tile, size, value_rows);
        multiply(size, lanes, tile.count, values.data, 1, values.stride, scores, lanes, state.values, lanes, !is_first);
        is_first = false;
    }

    float* const log_sums = call.log_sums + head.number(call) * call.log_sum_stride + begin;
    for (int64_t i = 0; i < queries; ++i) {
        const float sum = state.sums[i];
        const double log_sum = state.largest[i] + std::log(static_cast<double>(sum));
        log_sums[i] = sum == 0.0f ? -kInfinity : static_cast<float>(log_sum);
        if (call.keeps_remainders()) {
            log_sums[call.queries + i] = sum == 0.0f ? 0.0f : static_cast<float>(log_sum - log_sums[i]);
        }
        factors[i] = sum == 0.0f ? 0.0f : 1.0f / sum;
    }
    std::fill(factors + queries, factors + lanes, 0.0f);
    for (int64_t k = 0; k < size; ++k) {
        float* const at = state.values + k * lanes;
        for (int64_t lane = 0; lane < lanes; lane += kWidth) store(at + lane, load(at + lane) * load(factors + lane));
    }
    transpose(state.values, lanes, stride, lanes, rows, stride);
    unpack_rows(rows, stride, queries, size, row_of(out, head, begin), out.dtype, out.row);
}

}  // namespace

void attention_forward(const Attention& call, const HeadRows& out) {
    const int64_t tiles = query_tiles(call), stride = whole_vectors(call.size);
    const int64_t total = call.outer * call.inner * call.heads * tiles;
    const int64_t products = std::max<int64_t>(1, tile_queries(call) * std::min<int64_t>(call.keys, 4096) * call.size);
    const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 19) / products);
    share(call.executor, total, grain, [&](int64_t from, int64_t to) {
        Scratch scratch(5 * kTile * stride + kTile * kTile + 3 * kTile + 16 * 16);
        for (int64_t i = from; i < to; ++i) {
            forward_tile(call, out, head_of(call, i / tiles), i % tiles * tile_queries(call), scratch);
        }
    });
}

}  // namespace opforge::cpu
