#pragma once

// Attention on the host over tiles of queries and keys, without a matrix of all scores, and without torch.
//
// softmax(q k^T * scale + biases) v for each head. Sums are in float. A query without any key that it may see, or whose
// scores are all -inf, has the result 0 and a log-sum of -inf.

#include <opforge/multi_tensor.h>

namespace opforge::cpu {

constexpr int kMaxBiases = 3;

// A tensor [outer][inner][head][row][element] without gaps between elements. Strides count elements; 0 repeats.
struct HeadRows {
    void* data;
    DType dtype;
    int64_t outer, inner, head, row;
};

// Is added to scores: [outer][inner][head][query][key] without gaps between keys. A stride of 0 repeats.
struct ScoreBias {
    const void* data;
    DType dtype;
    int64_t outer, inner, head, query;
    bool multiplied;  // a mask: 0 hides a key, every other value changes nothing
    float* gradient;  // of the bias's own strides; null if it is not wanted
};

// Which blocks of keys a block of queries sees: for row `row` of head `head`, columns[offsets[i]] to
// columns[offsets[i + 1] - 1] with i = head * rows + row. Columns ascend in a row.
struct BlockList {
    const int32_t* offsets;  // null: all keys
    const int32_t* columns;
    int64_t block;  // keys, and queries, of a block
};

struct Attention {
    int64_t outer, inner, heads, queries, keys, size;  // `size` is that of a head
    HeadRows q, k, v;
    ScoreBias biases[kMaxBiases];
    int bias_count;
    BlockList blocks;
    bool causal;  // query i sees keys 0 to i
    float scale;

    bool keeps_remainders() const { return log_sum_stride >= 2 * queries; }
    // [outer][inner][head][log_sum_stride]: the logarithm of each query's sum. A stride of at least twice the queries
    // has space for what float cannot hold of each, behind them: the backward is then as exact as one that keeps all
    // scores.
    float* log_sums;
    int64_t log_sum_stride;
    Executor executor;
};

struct AttentionGradient {
    HeadRows out, dout;   // the result, and its gradient
    HeadRows dq, dk, dv;  // are written
    float* deltas;        // as log_sums: sum(out * dout) of each query, written
};

// Writes `out` and the log-sums.
void attention_forward(const Attention& call, const HeadRows& out);

// Writes the gradients of q, k, v and of the biases that have one. Each element is summed up in an order that depends
// on the shapes alone, so two runs give the same bits.
void attention_backward(const Attention& call, const AttentionGradient& gradient);

// Some queries of a sequence, whose keys and values are in pages of a cache: a row of DeepSpeed's tensor of atoms.
struct Atom {
    const int32_t* pages;
    int32_t first_query, queries, page_count, extent, position, unused;  // `extent` keys; position of the first query
};
static_assert(sizeof(Atom) == 32, "an atom is a row of eight int32");

// Rows [token][head][element] without gaps between heads and elements. Strides count elements.
struct TokenRows {
    void* data;
    int64_t token, page;  // from a token to the next, from a page to the next
};

struct PagedAttention {
    const Atom* atoms;
    DType dtype;
    int64_t heads, group, size;  // heads of keys, heads of queries that share one, the size of a head
    int64_t length;              // tokens of a page
    TokenRows q, out, k, v;
    bool causal;  // a query sees the keys up to its own position
    float scale;
};

// Writes the results of the pairs [begin, end) of atoms and heads of keys: pair i is atom i / heads and head i % heads.
void attention_over_pages(const PagedAttention& call, int64_t begin, int64_t end);

}  // namespace opforge::cpu
