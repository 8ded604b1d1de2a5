#include "query_tile.h"

namespace opforge::cpu {
namespace {

char* at_token(const TokenRows& rows, DType dtype, int64_t page, int64_t token, int64_t element) {
    const int64_t size = dtype == DType::Float32 ? 4 : 2;
    return static_cast<char*>(rows.data) + (page * rows.page + token * rows.token + element) * size;
}

// Packs the keys or values [first, first + count) of an atom's sequence as floats. Floats are copied too: rows of a
// cache lie so far apart that they would share few sets of the first-level cache.
Rows rows_of(const PagedAttention& call, const TokenRows& rows, const Atom& atom, int64_t head, int64_t first,
             int64_t count, float* buffer) {
    const int64_t stride = whole_vectors(call.size), element = head * call.size;
    for (int64_t done = 0; done < count;) {
        const int64_t key = first + done, run = std::min(call.length - key % call.length, count - done);
        const char* const data = at_token(rows, call.dtype, atom.pages[key / call.length], key % call.length, element);
        pack_rows(data, call.dtype, rows.token, run, call.size, 1.0f, buffer + done * stride, stride);
        done += run;
    }
    return {buffer, stride};
}

// Row `row` of an atom and a head of keys is query row / group and, of the heads that share the keys, row % group.
char* row_at(const PagedAttention& call, const TokenRows& rows, const Atom& atom, int64_t head, int64_t row) {
    const int64_t element = (head * call.group + row % call.group) * call.size;
    return at_token(rows, call.dtype, 0, atom.first_query + row / call.group, element);
}

void hide_later(const PagedAttention& call, const Atom& atom, const QueryTile& tile, int64_t begin, int64_t first,
                int64_t count, float* scores) {
    for (int64_t key = std::max<int64_t>(0, atom.position + begin / call.group + 1 - first); key < count; ++key) {
        const int64_t hidden = (first + key - atom.position) * call.group - begin;  // rows that come before it
        std::fill_n(scores + key * tile.lanes, std::min(tile.lanes, hidden), -kInfinity);
    }
}

// The last key, and one more, that the queries up to row `row` see.
int64_t seen_by(const PagedAttention& call, const Atom& atom, int64_t row) {
    return call.causal ? std::min<int64_t>(atom.extent, atom.position + row / call.group + 1) : atom.extent;
}

// Calls visit(first, count, keys, values) for the keys before `end`, a tile at a time.
template <typename Visit>
void each_tile(const PagedAttention& call, const Atom& atom, int64_t head, int64_t end, Scratch& scratch,
               const Visit& visit) {
    float* const key_rows = scratch.take(kTile * whole_vectors(call.size));
    float* const value_rows = scratch.take(kTile * whole_vectors(call.size));
    for (int64_t first = 0; first < end; first += kTile) {
        const int64_t count = std::min(kTile, end - first);
        visit(first, count, rows_of(call, call.k, atom, head, first, count, key_rows),
              rows_of(call, call.v, atom, head, first, count, value_rows));
    }
}

void attend(const PagedAttention& call, const Atom& atom, int64_t head, int64_t begin, Scratch& scratch) {
    const int64_t size = call.size, rows = std::min(kTile, atom.queries * call.group - begin);
    QueryTile tile(scratch, rows, size);
    float* const scores = scratch.take(kTile * kTile);
    for (int64_t i = 0; i < rows; ++i) {
        const char* const from = row_at(call, call.q, atom, head, begin + i);
        pack_rows(from, call.dtype, 0, 1, size, call.scale, tile.rows + i * tile.stride, tile.stride);
    }
    tile.start();
    each_tile(call, atom, head, seen_by(call, atom, begin + rows - 1), scratch,
              [&](int64_t first, int64_t count, const Rows& keys, const Rows& values) {
                  multiply(count, tile.lanes, size, keys.data, keys.stride, 1, tile.columns, tile.lanes, scores,
                           tile.lanes, false);
                  if (call.causal) hide_later(call, atom, tile, begin, first, count, scores);
                  tile.add(scores, count, values);
              });
    tile.finish();
    for (int64_t i = 0; i < rows; ++i) {
        char* const to = row_at(call, call.out, atom, head, begin + i);
        unpack_rows(tile.rows + i * tile.stride, 0, 1, size, to, call.dtype, 0);
    }
}

// So few rows, such as one of a sequence that is decoded, would leave most lanes of a tile empty. Their elements lie
// along the lanes instead.
constexpr int64_t kFewRows = kWidth / 4;

struct Row {
    float *query, *sums;
    float highest, weight;
};

float lanes_sum(Vec x) {
    float lanes[kWidth], sum = 0.0f;
    store(lanes, x);
    for (int64_t i = 0; i < kWidth; ++i) sum += lanes[i];
    return sum;
}

void add(Row& row, int64_t stride, int64_t count, const Rows& keys, const Rows& values, float* scores) {
    float highest = row.highest;
    for (int64_t key = 0; key < count; ++key) {
        Vec product(0.0f);
        for (int64_t i = 0; i < stride; i += kWidth) {
            product = fma(load(row.query + i), load(keys.data + key * keys.stride + i), product);
        }
        scores[key] = lanes_sum(product);
        highest = scores[key] > highest || scores[key] != scores[key] ? scores[key] : highest;
    }
    std::fill(scores + count, scores + whole_vectors(count), -kInfinity);
    const Vec base = larger(Vec(std::numeric_limits<float>::lowest()), Vec(highest));
    float factor[kWidth];
    store(factor, exp(Vec(row.highest) - base));
    Vec weight(0.0f);
    for (int64_t key = 0; key < count; key += kWidth) {
        const Vec power = exp(load(scores + key) - base);
        store(scores + key, power);
        weight = weight + power;
    }
    row.highest = highest, row.weight = row.weight * factor[0] + lanes_sum(weight);
    for (int64_t i = 0; i < stride; i += kWidth) {
        Vec sum = load(row.sums + i) * Vec(factor[0]);
        for (int64_t key = 0; key < count; ++key) {
            sum = fma(Vec(scores[key]), load(values.data + key * values.stride + i), sum);
        }
        store(row.sums + i, sum);
    }
}

void attend_few(const PagedAttention& call, const Atom& atom, int64_t head, Scratch& scratch) {
    const int64_t size = call.size, stride = whole_vectors(size), count = atom.queries * call.group;
    float* const scores = scratch.take(kTile);
    Row rows[kFewRows];
    for (int64_t i = 0; i < count; ++i) {
        rows[i] = {scratch.take(stride), scratch.take(stride), -kInfinity, 0.0f};
        pack_rows(row_at(call, call.q, atom, head, i), call.dtype, 0, 1, size, call.scale, rows[i].query, stride);
        clear(rows[i].sums, stride);
    }
    each_tile(call, atom, head, seen_by(call, atom, count - 1), scratch,
              [&](int64_t first, int64_t keys_count, const Rows& keys, const Rows& values) {
                  for (int64_t i = 0; i < count; ++i) {
                      const int64_t seen = std::min(keys_count, seen_by(call, atom, i) - first);
                      if (seen > 0) add(rows[i], stride, seen, keys, values, scores);
                  }
              });
    for (int64_t i = 0; i < count; ++i) {
        const Vec factor(rows[i].weight == 0.0f ? 0.0f : 1.0f / rows[i].weight);
        for (int64_t k = 0; k < stride; k += kWidth) store(rows[i].sums + k, load(rows[i].sums + k) * factor);
        unpack_rows(rows[i].sums, 0, 1, size, row_at(call, call.out, atom, head, i), call.dtype, 0);
    }
}

}  // namespace

void attention_over_pages(const PagedAttention& call, int64_t begin, int64_t end) {
    Scratch scratch(QueryTile::floats(call.size) + 2 * kTile * whole_vectors(call.size) + kTile * kTile + 3 * 16);
    for (int64_t i = begin; i < end; ++i) {
        const Atom& atom = call.atoms[i / call.heads];
        const int64_t head = i % call.heads, rows = atom.queries * call.group;
        scratch.reset();
        if (rows <= kFewRows) {
            attend_few(call, atom, head, scratch);
            continue;
        }
        for (int64_t row = 0; row < rows; row += kTile) {
            scratch.reset();
            attend(call, atom, head, row, scratch);
        }
    }
}

}  // namespace opforge::cpu
