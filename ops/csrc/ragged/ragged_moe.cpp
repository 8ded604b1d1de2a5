// The experts of a ragged batch: their choice, and the way of the tokens to them and back.

#include <opforge/stable_blocks.h>

#include <limits>
#include <vector>

#include "../attention/lanes.h"
#include "ragged.h"

namespace opforge::cpu {
namespace {

constexpr int32_t kUnassigned = -1;

// Chooses experts for one token after the other. Reuses its memory.
class Choice {
public:
    explicit Choice(int64_t count)
        : count_(count), groups_((count + kGroup - 1) / kGroup), x_(floats()), left_(floats()), peaks_(groups_) {}

    // Finds the `top` largest of a token's numbers; of equal ones the first. Writes their numbers and their softmax. A
    // NaN is taken only if it is the first that is left.
    template <typename T>
    void choose(const T* logits, int64_t top, int32_t* experts, float* scores) {
        float* const x = x_.data();
        float* const left = left_.data();
        to_floats(logits, count_, x);
        std::fill(x + count_, x + groups_ * kGroup, kNone);
        for (int64_t group = 0; group < groups_; ++group) find_peak(x, group);
        for (int64_t k = 0, first = 0; k < top; ++k) {
            while (is_nan(left[first]) && !is_nan(x[first])) ++first;  // these are taken
            const int64_t best = is_nan(x[first]) ? first++ : largest();
            experts[k] = static_cast<int32_t>(best);
            left[best] = kNone;
            if (k + 1 < top) find_peak(left, best / kGroup);
        }
        const float most = x[experts[0]];
        float sum = 0.0f;
        for (int64_t i = 0; i < groups_ * kGroup; i += kWidth) store(left + i, exp_of(load(x + i) - Vec(most)));
        for (int64_t i = 0; i < count_; ++i) sum += left[i];
        for (int64_t k = 0; k < top; ++k) scores[k] = left[experts[k]] / sum;
    }

private:
    static constexpr int64_t kGroup = 16;
    static constexpr float kNone = std::numeric_limits<float>::quiet_NaN();  // is larger than nothing

    std::vector<float> floats() const { return std::vector<float>(static_cast<size_t>(groups_ * kGroup)); }

    // Finds the largest number of a group; -inf if there is none. Copies what is left of it.
    void find_peak(const float* from, int64_t group) {
        Vec most(-kInfinity);
        for (int64_t i = group * kGroup; i < (group + 1) * kGroup; i += kWidth) {
            const Vec x = load(from + i);
            store(left_.data() + i, x);
            most = larger(x, most);
        }
        peaks_[group] = largest_lane(most);
    }
    // The first of the largest numbers that are left, of which there is one.
    int64_t largest() const {
        int64_t group = 0;
        for (int64_t i = 1; i < groups_; ++i) group = peaks_[i] > peaks_[group] ? i : group;
        int64_t best = group * kGroup;
        while (left_[best] != peaks_[group]) ++best;
        return best;
    }

    int64_t count_, groups_;
    std::vector<float> x_, left_, peaks_;
};

void top_k_gating(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 6; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    const Dense counts = numbers(handles[0], "expert_counts", true), scores = values(handles[1], "scores", true);
    const Dense experts = numbers(handles[2], "assignments", true), offsets = numbers(handles[3], "offsets", true);
    const Dense logits = values(handles[4], "logits", false), head = numbers(handles[5], "batch_metadata", false);
    check_dim(logits, "logits", 2, 2, "[tokens, experts]");
    check_dim(scores, "scores", 2, 2, "[tokens, top k]");
    const int64_t rows = logits.size(0), count = logits.size(1), top = scores.size(1);
    check_sizes(counts, "expert_counts", {count}, "one for each expert");
    check_sizes(scores, "scores", {rows, top}, "[tokens, top k]");
    check_sizes(experts, "assignments", {rows, top}, "[tokens, top k]");
    check_sizes(offsets, "offsets", {rows, top}, "[tokens, top k]");
    if (scores.kind != DType::Float32) refuse({"scores is not float32, expected float32"});
    if (top > count) {
        refuse({"scores has ", top, " columns, expected at most ", count, ", the number of experts"});
    }
    const int64_t tokens = head.numel > 0 ? head.as<const int32_t>()[0] : -1;
    if (tokens < 0 || tokens > rows) {
        refuse({"batch_metadata has ", tokens, " tokens, expected 0 to ", rows});
    }
    check_apart({{counts, "expert_counts"},
                 {scores, "scores"},
                 {experts, "assignments"},
                 {offsets, "offsets"},
                 {logits, "logits"},
                 {head, "batch_metadata"}},
                4);
    if (top == 0) return;
    with_dtype(logits.kind, [&](auto type) {
        using T = typename decltype(type)::type;
        each_row(tokens, count * 32, [&](int64_t begin, int64_t end) {
            Choice choice(count);
            for (int64_t i = begin; i < end; ++i) {
                choice.choose(logits.as<const T>() + i * count, top, experts.as<int32_t>() + i * top,
                              scores.as<float>() + i * top);
            }
        });
    });
    for (int64_t i = 0; i < rows * top; ++i) {
        int32_t& expert = experts.as<int32_t>()[i];
        if (i >= tokens * top) expert = kUnassigned;
        offsets.as<int32_t>()[i] = expert == kUnassigned ? kUnassigned : counts.as<int32_t>()[expert]++;
    }
}

void moe_scatter(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 7; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    const Dense out = dense(handles[0], "moe_input", true), sums = dense(handles[1], "expert_count_cumsums", true);
    const Dense slots = numbers(handles[2], "mapped_slots", true), in = dense(handles[3], "activations", false);
    const Dense counts = numbers(handles[4], "expert_counts", false);
    const Dense experts = numbers(handles[5], "assignments", false), offsets = numbers(handles[6], "offsets", false);
    check_dim(in, "activations", 2, 2, "[tokens, channels]");
    check_dim(experts, "assignments", 2, 2, "[tokens, top k]");
    check_dim(counts, "expert_counts", 1, 1, "[experts]");
    const int64_t tokens = in.size(0), top = experts.size(1), width = in.size(1) * in.item;
    check_sizes(experts, "assignments", {tokens, top}, "[tokens, top k]");
    check_sizes(offsets, "offsets", {tokens, top}, "[tokens, top k]");
    check_sizes(slots, "mapped_slots", {tokens, top}, "[tokens, top k]");
    check_sizes(out, "moe_input", {tokens * top, in.size(1)}, "[tokens * top k, channels]");
    check_sizes(sums, "expert_count_cumsums", {counts.numel}, "one for each expert");
    check_same_dtype(out, "moe_input", in, "activations");
    if (sums.dtype != aoti_torch_dtype_int64()) refuse({"expert_count_cumsums is not int64, expected int64"});
    check_apart({{out, "moe_input"},
                 {sums, "expert_count_cumsums"},
                 {slots, "mapped_slots"},
                 {in, "activations"},
                 {counts, "expert_counts"},
                 {experts, "assignments"},
                 {offsets, "offsets"}},
                3);
    check_range(experts, "assignments", kUnassigned, counts.numel, "numbers of experts, or -1");
    std::vector<int64_t> first(static_cast<size_t>(counts.numel) + 1);
    for (int64_t i = 0; i < counts.numel; ++i) first[i + 1] = first[i] + counts.as<const int32_t>()[i];
    std::vector<int64_t> places(static_cast<size_t>(tokens * top), kUnassigned);
    for (int64_t i = 0; i < tokens * top; ++i) {
        const int32_t expert = experts.as<const int32_t>()[i];
        if (expert == kUnassigned) continue;
        places[i] = first[expert] + offsets.as<const int32_t>()[i];
        if (places[i] >= 0 && places[i] < tokens * top) continue;
        refuse({"offsets and expert_counts lead to row ", places[i], " at position ", i, ", expected 0 to ",
                tokens * top - 1, ", the rows of moe_input"});
    }
    std::copy(first.begin() + 1, first.end(), sums.as<int64_t>());
    each_row(tokens, 2 * top * width, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * top; i < end * top; ++i) {
            slots.as<int32_t>()[i] = static_cast<int32_t>(places[i]);
            if (places[i] == kUnassigned) continue;
            std::memcpy(out.as<char>() + places[i] * width, in.as<const char>() + i / top * width,
                        static_cast<size_t>(width));
        }
    });
}

// The rows whose weighted sum is a token's result.
template <typename T>
struct Terms {
    std::vector<const T*> rows;
    std::vector<float> weights;
    int64_t count = 0;

    explicit Terms(int64_t top) : rows(static_cast<size_t>(top)), weights(static_cast<size_t>(top)) {}

    void read(const T* in, int64_t columns, const int32_t* slots, const float* scores, int64_t top, bool normalizes) {
        float sum = 0.0f;
        for (int64_t k = 0; k < top; ++k) sum += scores[k];
        count = 0;
        for (int64_t k = 0; k < top; ++k) {
            if (slots[k] == kUnassigned) continue;
            rows[count] = in + slots[k] * columns;
            weights[count++] = with_default_nan(normalizes && sum > 0.0f ? scores[k] / sum : scores[k]);
        }
    }
    void fetch(int64_t k) const {
        for (int64_t j = 0; j < count; ++j) __builtin_prefetch(rows[j] + k);
    }
};

void moe_gather(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 5; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    const Dense out = values(handles[0], "layer_output", true), in = values(handles[1], "moe_output", false);
    const Dense scores = values(handles[2], "scores", false), slots = numbers(handles[3], "mapped_slots", false);
    const Dense counts = numbers(handles[4], "expert_count", true);
    const bool normalizes = arguments.flag();
    check_dim(out, "layer_output", 2, 2, "[tokens, channels]");
    check_dim(slots, "mapped_slots", 2, 2, "[tokens, top k]");
    const int64_t tokens = out.size(0), columns = out.size(1), top = slots.size(1);
    check_sizes(slots, "mapped_slots", {tokens, top}, "[tokens, top k]");
    check_sizes(scores, "scores", {tokens, top}, "[tokens, top k]");
    check_sizes(in, "moe_output", {tokens * top, columns}, "[tokens * top k, channels]");
    check_same_dtype(out, "layer_output", in, "moe_output");
    if (scores.kind != DType::Float32) refuse({"scores is not float32, expected float32"});
    check_apart({{out, "layer_output"},
                 {counts, "expert_count"},
                 {in, "moe_output"},
                 {scores, "scores"},
                 {slots, "mapped_slots"}},
                2);
    check_range(slots, "mapped_slots", kUnassigned, tokens * top, "rows of moe_output, or -1");
    with_dtype(out.kind, [&](auto type) {
        using T = typename decltype(type)::type;
        const bool streamed = streams_rows(out, columns);
        each_row(tokens, (top + 1) * columns * out.item, [&](int64_t begin, int64_t end) {
            Terms<T> terms(top), next(top);
            const auto read = [&](Terms<T>& to, int64_t token) {
                to.read(in.as<const T>(), columns, slots.as<const int32_t>() + token * top,
                        scores.as<const float>() + token * top, top, normalizes);
            };
            read(next, begin);
            for (int64_t i = begin; i < end; ++i) {
                std::swap(terms, next);
                if (i + 1 < end) read(next, i + 1);
                if (terms.count == 0) continue;
                T* const to = out.as<T>() + i * columns;
                if (terms.count == 2) {
                    each_pair<T>(0, columns, [&, first = terms.rows[0], second = terms.rows[1]](int64_t k, auto left) {
                        next.fetch(k);
                        const Pair x = load_pair(first + k, left) * Pair(terms.weights[0]);
                        const Pair y = fma(load_pair(second + k, left), Pair(terms.weights[1]), x);
                        store_pair(to + k, y, left, streamed);
                    });
                    continue;
                }
                each_pair<T>(0, columns, [&](int64_t k, auto left) {
                    next.fetch(k);
                    Pair total(0.0f);
                    for (int64_t j = 0; j < terms.count; ++j) {
                        total = fma(load_pair(terms.rows[j] + k, left), Pair(terms.weights[j]), total);
                    }
                    store_pair(to + k, total, left, streamed);
                });
            }
            if (streamed) end_streams();
        });
    });
    std::fill_n(counts.as<int32_t>(), counts.numel, 0);  // for the next use
}

constexpr char kGating[] = "tttttt", kScatter[] = "ttttttt", kGather[] = "ttttt";

}  // namespace
}  // namespace opforge::cpu

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def(
        "top_k_gating(Tensor(a!) expert_counts, Tensor(b!) scores, Tensor(c!) assignments, Tensor(d!) offsets, Tensor "
        "logits, Tensor batch_metadata) -> ()");
    m.def(
        "moe_scatter(Tensor(a!) moe_input, Tensor(b!) expert_count_cumsums, Tensor(c!) mapped_slots, Tensor "
        "activations, Tensor expert_counts, Tensor assignments, Tensor offsets) -> ()");
    m.def(
        "moe_gather(Tensor(a!) layer_output, Tensor moe_output, Tensor scores, Tensor mapped_slots, Tensor(b!) "
        "expert_count, bool normalize_scales) -> ()");
}

// For every backend: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("top_k_gating", OPFORGE_BOXED(&opforge::cpu::top_k_gating));
    m.impl("moe_scatter", OPFORGE_BOXED(&opforge::cpu::moe_scatter));
    m.impl("moe_gather", OPFORGE_BOXED(&opforge::cpu::moe_gather));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) {
    m.impl("top_k_gating", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kGating>));
    m.impl("moe_scatter", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kScatter>));
    m.impl("moe_gather", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kGather>));
}
