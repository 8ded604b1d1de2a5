#include <vector>

#include "gradients.h"

namespace opforge::cpu {
namespace {

// Sums of the gradients of scores over the queries of a head, for a bias that all queries share: a number for each key.
void add_key_sums(const KeyTile& keys, int64_t lanes, const float* gradients, float* sums) {
    for (int64_t r = 0; r < keys.run_count; ++r) {
        const KeyRun& run = keys.runs[r];
        for (int64_t i = 0; i < run.count; ++i) {
            const float* const row = gradients + (run.at + i) * lanes;
            Vec sum(0.0f);
            for (int64_t lane = 0; lane < lanes; lane += kWidth) sum = sum + load(row + lane);
            float parts[kWidth];
            store(parts, sum);
            for (int64_t half = kWidth / 2; half > 0; half /= 2) {
                for (int64_t lane = 0; lane < half; ++lane) parts[lane] += parts[lane + half];
            }
            sums[run.begin + i] += parts[0];
        }
    }
}

// Computes dq, dk and dv of a head, and its part of the gradients of biases that all queries share.
void backward_head(const Attention& call, const AttentionGradient& gradient, int64_t number, float* dk, float* dv,
                   float* const* key_sums, Scratch& scratch) {
    scratch.reset();
    const Head head = head_of(call, number);
    const int64_t size = call.size, stride = whole_vectors(size);
    QueryTile queries = take_queries(stride, scratch);
    float* const key_buffer = scratch.take(kTile * stride);
    float* const value_buffer = scratch.take(kTile * stride);
    float* const dq = scratch.take(kTile * stride);
    float* const dq_rows = scratch.take(kTile * stride);
    const ScoreTile scores{scratch.take(kTile * kTile), scratch.take(kTile * kTile)};
    clear(dk, call.keys * stride);
    clear(dv, call.keys * stride);
    for (int64_t begin = 0; begin < call.queries; begin += tile_queries(call)) {
        load_queries(call, gradient, head, begin, queries);
        const int64_t lanes = queries.lanes;
        clear(dq, stride * lanes);
        KeyTile keys;
        KeyTiles tiles(call, head, begin, begin + queries.queries);
        while (tiles.next(keys)) {
            const Rows key_rows = rows_of(call.k, head, keys, size, key_buffer);
            const Rows value_rows = rows_of(call.v, head, keys, size, value_buffer);
            compute_gradients(call, head, queries, keys, key_rows, value_rows, scores);
            for (int64_t r = 0; r < keys.run_count; ++r) {
                const KeyRun& run = keys.runs[r];
                multiply(run.count, stride, queries.queries, scores.powers + run.at * lanes, lanes, 1,
                         queries.gradients, stride, dv + run.begin * stride, stride, true);
                multiply(run.count, stride, queries.queries, scores.gradients + run.at * lanes, lanes, 1, queries.rows,
                         stride, dk + run.begin * stride, stride, true);
            }
            multiply(size, lanes, keys.count, key_rows.data, 1, key_rows.stride, scores.gradients, lanes, dq, lanes,
                     true);
            for (int i = 0; i < call.bias_count; ++i) {
                if (key_sums[i]) add_key_sums(keys, lanes, scores.gradients, key_sums[i] + number * call.keys);
            }
        }
        transpose(dq, lanes, stride, lanes, dq_rows, stride);
        for (int64_t k = 0; k < lanes * stride; k += kWidth) store(dq_rows + k, load(dq_rows + k) * Vec(call.scale));
        unpack_rows(dq_rows, stride, queries.queries, size, row_of(gradient.dq, head, begin), gradient.dq.dtype,
                    gradient.dq.row);
    }
    unpack_rows(dk, stride, call.keys, size, row_of(gradient.dk, head, 0), gradient.dk.dtype, gradient.dk.row);
    unpack_rows(dv, stride, call.keys, size, row_of(gradient.dv, head, 0), gradient.dv.dtype, gradient.dv.row);
}

// sum(out * dout) of each query, in the order in which `multiply` sums up v * dout: with one key the two are the same.
void compute_deltas(const Attention& call, const AttentionGradient& gradient) {
    const int64_t size = call.size, stride = whole_vectors(size), tiles = (call.queries + kTile - 1) / kTile;
    const int64_t series = series_of(size);
    const int64_t total = call.outer * call.inner * call.heads * tiles;
    const int64_t grain = std::max<int64_t>(1, kGrain / (kTile * size));
    share(call.executor, total, grain, [&](int64_t from, int64_t to) {
        Scratch scratch(3 * kTile * stride + 48);
        float* const rows = scratch.take(kTile * stride);
        float *const out = scratch.take(kTile * stride), *const dout = scratch.take(kTile * stride);
        for (int64_t i = from; i < to; ++i) {
            const Head head = head_of(call, i / tiles);
            const int64_t begin = i % tiles * kTile, queries = std::min(kTile, call.queries - begin);
            const int64_t lanes = whole_vectors(queries);
            const auto fill = [&](const HeadRows& from_rows, float* columns) {
                pack_rows(row_of(from_rows, head, begin), from_rows.dtype, from_rows.row, queries, size, 1.0f, rows,
                          stride);
                clear(rows + queries * stride, (lanes - queries) * stride);
                transpose(rows, stride, lanes, stride, columns, lanes);
            };
            fill(gradient.out, out);
            fill(gradient.dout, dout);
            for (int64_t lane = 0; lane < lanes; lane += kWidth) {
                Vec total(0.0f);
                for (int64_t first = 0; first < size; first += series) {
                    Vec sum(0.0f);
                    for (int64_t k = first; k < std::min(first + series, size); ++k) {
                        sum = fma(load(out + k * lanes + lane), load(dout + k * lanes + lane), sum);
                    }
                    total = first == 0 ? sum : total + sum;
                }
                store(rows + lane, total);
            }
            std::copy_n(rows, queries, gradient.deltas + head.number(call) * call.log_sum_stride + begin);
        }
    });
}

// The heads that share one row of a bias, as ranges of its three dimensions.
struct Owners {
    int64_t outer, inner, heads;

    explicit Owners(const Attention& call, const ScoreBias& bias)
        : outer(bias.outer != 0 ? call.outer : 1),
          inner(bias.inner != 0 ? call.inner : 1),
          heads(bias.head != 0 ? call.heads : 1) {}
    int64_t count() const { return outer * inner * heads; }
    Head owner(int64_t number) const { return {number / (inner * heads), number / heads % inner, number % heads}; }

    // Calls visit(head) for each head that shares the rows of `owner`.
    template <typename Visit>
    void each(const Attention& call, const Head& owner, const Visit& visit) const {
        for (int64_t o = owner.outer; o < call.outer; o += outer) {
            for (int64_t i = owner.inner; i < call.inner; i += inner) {
                for (int64_t h = owner.head; h < call.heads; h += heads) visit(Head{o, i, h});
            }
        }
    }
};

// Sums the parts of heads up: the gradient of a bias that all queries share.
void reduce_key_sums(const Attention& call, const ScoreBias& bias, const float* sums) {
    const Owners owners(call, bias);
    for (int64_t number = 0; number < owners.count(); ++number) {
        const Head owner = owners.owner(number);
        float* const to = bias.gradient + owner.offset(bias);
        std::fill_n(to, call.keys, 0.0f);
        owners.each(call, owner, [&](const Head& head) {
            const float* const from = sums + head.number(call) * call.keys;
            for (int64_t key = 0; key < call.keys; ++key) to[key] += from[key];
        });
    }
}

// The gradient of a bias that has a row for each query, of some of its rows: the scores are computed again, so that
// each number of it has one thread, which sums it up over the heads that share it.
void backward_bias_rows(const Attention& call, const AttentionGradient& gradient, const ScoreBias& bias,
                        const Head& owner, int64_t begin, Scratch& scratch) {
    scratch.reset();
    const int64_t size = call.size, stride = whole_vectors(size);
    QueryTile queries = take_queries(stride, scratch);
    float* const key_buffer = scratch.take(kTile * stride);
    float* const value_buffer = scratch.take(kTile * stride);
    const ScoreTile scores{scratch.take(kTile * kTile), scratch.take(kTile * kTile)};
    float* const sums = scratch.take(kTile * kTile);
    float* const rows = scratch.take(kTile * kTile);
    const int64_t end = std::min(begin + tile_queries(call), call.queries);
    const int64_t lanes = whole_vectors(end - begin);
    float* const first = bias.gradient + owner.offset(bias);
    for (int64_t query = begin; query < end; ++query) clear(first + query * bias.query, call.keys);
    const Owners owners(call, bias);
    const auto add_tile = [&](const Head& head, const KeyTile& keys) {
        load_queries(call, gradient, head, begin, queries);
        const Rows key_rows = rows_of(call.k, head, keys, size, key_buffer);
        const Rows value_rows = rows_of(call.v, head, keys, size, value_buffer);
        compute_gradients(call, head, queries, keys, key_rows, value_rows, scores);
        for (int64_t k = 0; k < keys.count * lanes; k += kWidth) {
            store(sums + k, load(sums + k) + load(scores.gradients + k));
        }
    };
    const auto write_tile = [&](const KeyTile& keys) {
        const int64_t whole = whole_vectors(keys.count);
        clear(sums + keys.count * lanes, (whole - keys.count) * lanes);
        transpose(sums, lanes, whole, lanes, rows, whole);
        for (int64_t r = 0; r < keys.run_count; ++r) {
            const KeyRun& run = keys.runs[r];
            for (int64_t query = begin; query < end; ++query) {
                float* const to = first + query * bias.query + run.begin;
                const float* const from = rows + (query - begin) * whole + run.at;
                for (int64_t i = 0; i < run.count; ++i) to[i] += from[i];
            }
        }
    };
    // Heads with lists of their own see different keys.
    const bool is_one_list = !call.blocks.offsets || bias.head != 0;
    KeyTile keys;
    if (is_one_list) {
        KeyTiles tiles(call, owner, begin, end);
        while (tiles.next(keys)) {
            clear(sums, whole_vectors(keys.count) * lanes);
            owners.each(call, owner, [&](const Head& head) { add_tile(head, keys); });
            write_tile(keys);
        }
    } else {
        owners.each(call, owner, [&](const Head& head) {
            KeyTiles tiles(call, head, begin, end);
            while (tiles.next(keys)) {
                clear(sums, whole_vectors(keys.count) * lanes);
                add_tile(head, keys);
                write_tile(keys);
            }
        });
    }
}

}  // namespace

void attention_backward(const Attention& call, const AttentionGradient& gradient) {
    compute_deltas(call, gradient);
    const int64_t heads = call.outer * call.inner * call.heads, stride = whole_vectors(call.size);
    std::vector<float> sums[kMaxBiases];
    float* key_sums[kMaxBiases] = {};
    for (int i = 0; i < call.bias_count; ++i) {
        if (!call.biases[i].gradient || call.biases[i].query != 0) continue;
        sums[i].assign(static_cast<size_t>(heads * call.keys), 0.0f);
        key_sums[i] = sums[i].data();
    }
    const int64_t products = std::max<int64_t>(1, call.queries * std::min<int64_t>(call.keys, 4096) * call.size);
    share(call.executor, heads, std::max<int64_t>(1, (int64_t{1} << 18) / products), [&](int64_t from, int64_t to) {
        Scratch scratch(scratch_size(stride)), buffers(2 * call.keys * stride + 32);
        float *const dk = buffers.take(call.keys * stride), *const dv = buffers.take(call.keys * stride);
        for (int64_t i = from; i < to; ++i) backward_head(call, gradient, i, dk, dv, key_sums, scratch);
    });
    for (int i = 0; i < call.bias_count; ++i) {
        const ScoreBias& bias = call.biases[i];
        if (!bias.gradient) continue;
        if (key_sums[i]) {
            reduce_key_sums(call, bias, key_sums[i]);
            continue;
        }
        const Owners owners(call, bias);
        const int64_t tiles = query_tiles(call);
        share(call.executor, owners.count() * tiles, 1, [&](int64_t from, int64_t to) {
            Scratch scratch(scratch_size(stride));
            for (int64_t part = from; part < to; ++part) {
                backward_bias_rows(call, gradient, bias, owners.owner(part / tiles), part % tiles * tile_queries(call),
                                   scratch);
            }
        });
    }
}

}  // namespace opforge::cpu
