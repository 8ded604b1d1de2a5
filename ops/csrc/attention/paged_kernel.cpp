#include <vector>

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
constexpr int64_t kFewRows = kWidth / 2;
// Bytes of the keys and values of some tokens and heads, which are read while those before are computed with: both fit
// the second-level cache.
constexpr int64_t kSomeBytes = 256 << 10;

struct Row {
    // The floats that a row's memory has.
    static int64_t floats(int64_t stride) { return 2 * stride + kWidth; }
    Row() = default;
    Row(float* memory, int64_t stride) : query(memory), sums(query + stride), weights(sums + stride) {
        clear(sums, stride + kWidth);
    }

    float *query, *sums, *weights;  // `weights` is a vector, whose lanes' sum is that of the powers
    float highest = -kInfinity;
};

// Keys or values of a few tokens, with the heads from `first` of each.
template <typename T>
struct FewTokens {
    static constexpr int64_t kCount = 4 * kWidth;
    const T* rows[kCount];

    // Those from token `key`. The last token, end - 1, is also in place of those behind it.
    FewTokens(const PagedAttention& call, const TokenRows& tokens, const Atom& atom, int64_t key, int64_t end,
              int64_t first) {
        for (int64_t i = 0; i < kCount; ++i) {
            const int64_t at = std::min(key + i, end - 1);
            rows[i] = static_cast<const T*>(tokens.data) + atom.pages[at / call.length] * tokens.page +
                      at % call.length * tokens.token + first * call.size;
        }
    }
    const T* operator[](int64_t token) const { return rows[token]; }
};

// Fetches the elements of tokens into the second-level cache, one line after the other, some at a time between
// computations: a head's elements lie so far apart that the processor would not read them ahead. It does not load them:
// the computation behind a load would wait for the memory.
class Ahead {
public:
    Ahead(int64_t tokens, int64_t bytes) : tokens_(tokens), bytes_(bytes) {}

    template <typename T>
    void begin(const FewTokens<T>& keys, const FewTokens<T>& values) {
        for (int64_t i = 0; i < tokens_; ++i) rows_[2 * i] = keys[i], rows_[2 * i + 1] = values[i];
        row_ = at_ = 0;
    }
    void read(int64_t lines) {
        for (; lines > 0 && row_ < 2 * tokens_; --lines) {
            __builtin_prefetch(static_cast<const char*>(rows_[row_]) + at_, 0, 2);
            at_ += 64;
            if (at_ >= bytes_) at_ = 0, ++row_;
        }
    }

private:
    int64_t tokens_, bytes_, row_ = 0, at_ = 0;
    const void* rows_[2 * kTile];
};

template <typename T>
Vec load_part(const T* data, int64_t count) {
    if (count >= kWidth) return load(data);
    T last[kWidth] = {};
    std::memcpy(last, data, static_cast<size_t>(count) * sizeof(T));
    return load(last);
}

// The lines that so many vectors fill.
template <typename T>
constexpr int64_t kLines(int64_t vectors) {
    return vectors * kWidth * static_cast<int64_t>(sizeof(T)) / 64;
}

// Two vectors of elements. Of bfloat16 the first has the even ones and the second the odd ones, which costs half of
// what their order would cost: a query is in this order too, and a result is put in its own order at the end.
struct TwoVecs {
    Vec first, second;
};
inline TwoVecs load_two(const float* data) { return {load(data), load(data + kWidth)}; }
inline TwoVecs load_two(const Float16* data) { return {load(data), load(data + kWidth)}; }
inline TwoVecs load_two(const BFloat16* data) {
    Vec words;
    std::memcpy(&words.v, data, sizeof words.v);
    return {lower_half_up(words), bit_and(words, set_bits(0xffff0000u))};
}

// Puts the elements of a row in the order of load_two, or back.
template <typename T>
void reorder(float* row, int64_t size, bool back) {
    if (!std::is_same_v<T, BFloat16>) return;
    float pair[2 * kWidth];
    for (int64_t i = 0; i + 2 * kWidth <= size; i += 2 * kWidth) {
        for (int64_t k = 0; k < 2 * kWidth; ++k) {
            const int64_t other = k % kWidth * 2 + k / kWidth;
            pair[back ? other : k] = row[i + (back ? k : other)];
        }
        std::copy_n(pair, 2 * kWidth, row + i);
    }
}

// Writes the scores of some rows, [row][kCount of FewTokens], for as many keys as a vector has lanes. `head` counts
// elements.
template <int kRows, typename T>
void score(const Row* rows, int64_t size, const FewTokens<T>& keys, Ahead& ahead, int64_t head, int64_t first,
           float* scores) {
    constexpr int kKeys = kWidth / kRows;
    for (int64_t key = first; key < first + kWidth; key += kKeys) {
        Vec sums[kRows * kKeys];
        for (Vec& sum : sums) sum = Vec(0.0f);
        const T* from[kKeys];
        for (int j = 0; j < kKeys; ++j) from[j] = keys[key + j] + head;
        const auto add = [&](int j, int64_t i, Vec x) {
            for (int r = 0; r < kRows; ++r) {
                sums[r * kKeys + j] = fma(load(rows[r].query + i), x, sums[r * kKeys + j]);
            }
        };
        int64_t i = 0;
        for (; i + 2 * kWidth <= size; i += 2 * kWidth) {
            for (int j = 0; j < kKeys; ++j) {
                const TwoVecs x = load_two(from[j] + i);
                add(j, i, x.first), add(j, i + kWidth, x.second);
            }
            ahead.read(kLines<T>(2 * kKeys));
        }
        for (; i < size; i += kWidth) {
            for (int j = 0; j < kKeys; ++j) add(j, i, load_part(from[j] + i, size - i));
        }
        float lanes[kWidth];
        store(lanes, Vec(reinterpret_cast<decltype(Vec::v)>(lane_sums(sums))));
        for (int r = 0; r < kRows; ++r) {
            std::copy_n(lanes + r * kKeys, kKeys, scores + r * FewTokens<T>::kCount + key);
        }
    }
}

// Turns the scores of a row into powers, those from `seen` into 0, and adapts its sums to a larger score.
void soften(Row& row, int64_t stride, int64_t seen, int64_t count, float* scores) {
    std::fill(scores + std::min(seen, count), scores + whole_vectors(count), -kInfinity);
    Vec most(-kInfinity);  // a NaN is ignored here, and makes the sum of powers one
    for (int64_t key = 0; key < count; key += kWidth) most = larger(load(scores + key), most);
    const float highest = std::max(row.highest, largest_lane(most));
    const Vec base = larger(Vec(std::numeric_limits<float>::lowest()), Vec(highest));
    Vec weights = load(row.weights);
    if (highest != row.highest) {
        const Vec factor = exp(Vec(row.highest) - base);
        weights = weights * factor;
        for (int64_t i = 0; i < stride; i += kWidth) store(row.sums + i, load(row.sums + i) * factor);
    }
    for (int64_t key = 0; key < count; key += kWidth) {
        const Vec power = exp(load(scores + key) - base);
        store(scores + key, power);
        weights = weights + power;
    }
    store(row.weights, weights);
    row.highest = highest;
}

// The values of so many keys are summed by themselves, then the sums of the keys [begin, end) of a call, and these with
// those before: in one long sum each addition rounds a larger number.
constexpr int64_t kSummedKeys = kWidth;

template <int kRows, int kVecs, bool kTwo, typename T>
void add_part(const Row* rows, int64_t i, int64_t count, const FewTokens<T>& values, Ahead& ahead, int64_t head,
              int64_t begin, int64_t end, const float* powers) {
    Vec totals[kRows][kVecs];
    for (auto& row : totals) std::fill_n(row, kVecs, Vec(0.0f));
    for (int64_t key = begin; key < end;) {
        Vec sums[kRows][kVecs];
        for (auto& row : sums) std::fill_n(row, kVecs, Vec(0.0f));
        for (const int64_t last = std::min(key + kSummedKeys, end); key < last; ++key) {
            const T* const from = values[key] + head + i;
            Vec x[kVecs];
            if constexpr (kTwo) {
                for (int v = 0; v < kVecs; v += 2) {
                    const TwoVecs two = load_two(from + v * kWidth);
                    x[v] = two.first, x[v + 1] = two.second;
                }
            } else {
                x[0] = load_part(from, count);
            }
            ahead.read(kLines<T>(kVecs));
            for (int r = 0; r < kRows; ++r) {
                const Vec power(powers[r * FewTokens<T>::kCount + key]);
                for (int v = 0; v < kVecs; ++v) sums[r][v] = fma(power, x[v], sums[r][v]);
            }
        }
        for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kVecs; ++v) totals[r][v] = totals[r][v] + sums[r][v];
        }
    }
    for (int r = 0; r < kRows; ++r) {
        float* const to = rows[r].sums + i;
        for (int v = 0; v < kVecs; ++v) store(to + v * kWidth, load(to + v * kWidth) + totals[r][v]);
    }
}

// Adds the values of keys [begin, end) to the sums of some rows, whose powers are [row][kCount of FewTokens].
template <int kRows, typename T>
void add_values(const Row* rows, int64_t size, const FewTokens<T>& values, Ahead& ahead, int64_t head, int64_t begin,
                int64_t end, const float* powers) {
    constexpr int kVecs = kWidth < 16 ? 2 : kRows == 1 ? 8 : 4;
    int64_t i = 0;
    for (; i + kVecs * kWidth <= size; i += kVecs * kWidth) {
        add_part<kRows, kVecs, true>(rows, i, kVecs * kWidth, values, ahead, head, begin, end, powers);
    }
    for (; i + 2 * kWidth <= size; i += 2 * kWidth) {
        add_part<kRows, 2, true>(rows, i, 2 * kWidth, values, ahead, head, begin, end, powers);
    }
    for (; i < size; i += kWidth) add_part<kRows, 1, false>(rows, i, size - i, values, ahead, head, begin, end, powers);
}

// Attends with kRows rows of a head. `seen` are the tokens that each may see, of `count`.
template <int kRows, typename T>
void attend_rows(Row* rows, int64_t size, const FewTokens<T>& keys, const FewTokens<T>& values, Ahead& ahead,
                 int64_t head, int64_t count, const int64_t* seen, float* scores) {
    for (int64_t key = 0; key < count; key += kWidth) score<kRows>(rows, size, keys, ahead, head, key, scores);
    int64_t common = count;
    for (int r = 0; r < kRows; ++r) {
        if (seen[r] > 0) soften(rows[r], whole_vectors(size), seen[r], count, scores + r * FewTokens<T>::kCount);
        common = std::min(common, std::max<int64_t>(0, seen[r]));
    }
    add_values<kRows>(rows, size, values, ahead, head, 0, common, scores);
    // Values that a row does not see are left out: a NaN times 0 would be one.
    for (int r = 0; r < kRows; ++r) {
        add_values<1>(rows + r, size, values, ahead, head, common, std::min(count, seen[r]),
                      scores + r * FewTokens<T>::kCount);
    }
}

// The heads that are attended to together: as many as a vector of tokens has space for.
int64_t some_heads(const PagedAttention& call) {
    const int64_t size = call.size * (call.dtype == DType::Float32 ? 4 : 2);
    return std::clamp<int64_t>(kSomeBytes / (kWidth * 2 * size), 1, call.heads);
}

// The tokens that are attended to together. They decide the order of sums, so they follow from the shape alone and not
// from the heads that a thread has.
template <typename T>
int64_t some_tokens(const PagedAttention& call) {
    const int64_t bytes = 2 * some_heads(call) * call.size * static_cast<int64_t>(sizeof(T));
    return std::clamp(kSomeBytes / bytes / kWidth * kWidth, kWidth, FewTokens<T>::kCount);
}

// The floats that attend_few takes for so many heads.
int64_t few_floats(const PagedAttention& call, int64_t heads) {
    const int64_t rows = heads * kFewRows * Row::floats(whole_vectors(call.size));
    return Scratch::space(kFewRows * FewTokens<float>::kCount) + Scratch::space(rows);
}

// Attends with the rows of an atom for heads [first, last), which lie together in each token.
template <typename T>
void attend_few(const PagedAttention& call, const Atom& atom, int64_t first, int64_t last, Scratch& scratch) {
    constexpr int64_t kTokens = FewTokens<T>::kCount;
    const int64_t size = call.size, stride = whole_vectors(size), count = atom.queries * call.group;
    float* const scores = scratch.take(kFewRows * kTokens);
    float* const memory = scratch.take((last - first) * count * Row::floats(stride));
    std::vector<Row> rows(static_cast<size_t>((last - first) * count));
    for (int64_t i = 0; i < (last - first) * count; ++i) {
        Row& row = rows[i] = Row(memory + i * Row::floats(stride), stride);
        const char* const from = row_at(call, call.q, atom, first + i / count, i % count);
        pack_rows(from, call.dtype, 0, 1, size, call.scale, row.query, stride);
        reorder<T>(row.query, size, false);
    }
    const int64_t end = seen_by(call, atom, count - 1);
    const int64_t bytes = (last - first) * size * static_cast<int64_t>(sizeof(T));
    const int64_t step = some_tokens<T>(call);
    if (end > 0) {
        FewTokens<T> keys(call, call.k, atom, 0, end, first), values(call, call.v, atom, 0, end, first);
        Ahead ahead(step, bytes);
        ahead.begin(keys, values);
        ahead.read(2 * step * (bytes / 64 + 1));
        for (int64_t key = 0; key < end; key += step) {
            const int64_t tokens = std::min(step, end - key), next = std::min(key + step, end - 1);
            const FewTokens<T> next_keys(call, call.k, atom, next, end, first);
            const FewTokens<T> next_values(call, call.v, atom, next, end, first);
            ahead.begin(next_keys, next_values);
            int64_t seen[kFewRows];
            for (int64_t i = 0; i < count; ++i) seen[i] = seen_by(call, atom, i) - key;
            for (int64_t head = 0; head < last - first; ++head) {
                Row* const row = rows.data() + head * count;
                const int64_t at = head * size;
                int64_t i = 0;
                for (; i + 4 <= count; i += 4)
                    attend_rows<4>(row + i, size, keys, values, ahead, at, tokens, seen + i, scores);
                for (; i + 2 <= count; i += 2)
                    attend_rows<2>(row + i, size, keys, values, ahead, at, tokens, seen + i, scores);
                for (; i < count; ++i) attend_rows<1>(row + i, size, keys, values, ahead, at, tokens, seen + i, scores);
            }
            keys = next_keys, values = next_values;
        }
    }
    for (int64_t i = 0; i < (last - first) * count; ++i) {
        const Row& row = rows[i];
        float weight = 0.0f;
        for (int64_t lane = 0; lane < kWidth; ++lane) weight += row.weights[lane];
        const Vec factor(weight == 0.0f ? 0.0f : 1.0f / weight);
        for (int64_t k = 0; k < stride; k += kWidth) store(row.sums + k, load(row.sums + k) * factor);
        reorder<T>(row.sums, size, true);
        char* const to = row_at(call, call.out, atom, first + i / count, i % count);
        unpack_rows(row.sums, 0, 1, size, to, call.dtype, 0);
    }
}

}  // namespace

void attention_over_pages(const PagedAttention& call, int64_t begin, int64_t end) {
    const int64_t stride = whole_vectors(call.size);
    const int64_t tiles = QueryTile::floats(call.size) + 2 * kTile * stride + kTile * kTile;
    const int64_t few = few_floats(call, std::min(some_heads(call), end - begin));
    Scratch scratch(std::max(tiles + 3 * 16, few));
    for (int64_t i = begin; i < end;) {
        const Atom& atom = call.atoms[i / call.heads];
        const int64_t head = i % call.heads, rows = atom.queries * call.group;
        if (rows <= kFewRows) {
            const int64_t last = std::min({call.heads, head + end - i, head + some_heads(call)});
            scratch.reset();
            with_dtype(call.dtype,
                       [&](auto type) { attend_few<typename decltype(type)::type>(call, atom, head, last, scratch); });
            i += last - head;
            continue;
        }
        for (int64_t row = 0; row < rows; row += kTile) {
            scratch.reset();
            attend(call, atom, head, row, scratch);
        }
        ++i;
    }
}

}  // namespace opforge::cpu
