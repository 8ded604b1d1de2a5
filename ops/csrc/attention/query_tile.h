#pragma once

// A tile of queries with the softmax over the keys that it has seen so far.

#include <algorithm>

#include "scores.h"

namespace opforge::cpu {

// Queries lie as columns, [element][query], and so do scores, [key][query], and the sums of values.
class QueryTile {
public:
    static int64_t floats(int64_t size) { return 3 * kTile * whole_vectors(size) + 3 * kTile + 6 * 16; }

    QueryTile(Scratch& scratch, int64_t queries, int64_t size)
        : queries(queries), lanes(whole_vectors(queries)), size(size), stride(whole_vectors(size)) {
        rows = scratch.take(kTile * stride);
        columns = scratch.take(stride * kTile);
        values_ = scratch.take(stride * kTile);
        largest = scratch.take(kTile), sums = scratch.take(kTile), factors_ = scratch.take(kTile);
    }

    // `rows` holds the queries, scaled.
    void start() {
        clear(rows + queries * stride, (lanes - queries) * stride);
        transpose(rows, stride, lanes, stride, columns, lanes);
        std::fill_n(largest, lanes, -kInfinity);
        clear(sums, lanes);
        clear(values_, stride * lanes);
        is_first_ = true;
    }

    // Takes the scores of more keys, which it overwrites, and their values.
    void add(float* scores, int64_t keys, const Rows& values) {
        soften(scores, keys);
        if (!is_first_ && std::any_of(factors_, factors_ + lanes, [](float x) { return x != 1.0f; })) scale();
        multiply(size, lanes, keys, values.data, 1, values.stride, scores, lanes, values_, lanes, !is_first_);
        is_first_ = false;
    }

    // Leaves the results in `rows`. A query without keys has 0.
    void finish() {
        for (int64_t i = 0; i < queries; ++i) factors_[i] = sums[i] == 0.0f ? 0.0f : 1.0f / sums[i];
        std::fill(factors_ + queries, factors_ + lanes, 0.0f);
        scale();
        transpose(values_, lanes, stride, lanes, rows, stride);
    }

    const int64_t queries, lanes, size, stride;
    float *rows, *columns;  // [query][stride], [element][lanes]
    float *largest, *sums;  // of each query: the largest score, the sum of powers

private:
    // Turns scores into powers, and adapts the sums to a larger score. The factors are those of the sums of values.
    void soften(float* scores, int64_t keys) {
        const Vec lowest(std::numeric_limits<float>::lowest());  // in place of -inf, of which no difference is a number
        for (int64_t lane = 0; lane < lanes; lane += kWidth) {
            const Vec before = load(largest + lane);
            Vec highest = before;
            for (int64_t key = 0; key < keys; ++key) highest = larger(highest, load(scores + key * lanes + lane));
            const Vec base = larger(lowest, highest);
            const Vec factor = exp(before - base);
            Vec parts[4] = {Vec(0.0f), Vec(0.0f), Vec(0.0f), Vec(0.0f)};
            for (int64_t key = 0; key < keys; ++key) {
                float* const at = scores + key * lanes + lane;
                const Vec power = exp(load(at) - base);
                store(at, power);
                parts[key % 4] = parts[key % 4] + power;
            }
            store(largest + lane, highest);
            const Vec sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
            store(sums + lane, fma(load(sums + lane), factor, sum));
            store(factors_ + lane, factor);
        }
    }

    void scale() {
        for (int64_t k = 0; k < size; ++k) {
            float* const at = values_ + k * lanes;
            for (int64_t lane = 0; lane < lanes; lane += kWidth) {
                store(at + lane, load(at + lane) * load(factors_ + lane));
            }
        }
    }

    float *values_, *factors_;
    bool is_first_ = true;
};

}  // namespace opforge::cpu
