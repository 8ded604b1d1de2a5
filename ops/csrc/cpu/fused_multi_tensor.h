#pragma once

// The host's side of the multi-tensor ops: torch's threads share the elements of all tensors, in blocks that stay in
// the first cache. A block is turned to floats, updated, and turned back, so a rule is compiled once for all dtypes.

#include <opforge/element.h>
#include <opforge/multi_tensor.h>

#include <algorithm>
#include <vector>

namespace opforge::cpu {

constexpr int64_t kBlock = 512;
constexpr int64_t kGrain = 16384;  // elements whose work costs more than waking a thread does

template <typename Visit>
void with_elements(DType dtype, void* data, const Visit& visit) {
    with_dtype(dtype, [&](auto type) { visit(static_cast<typename decltype(type)::type*>(data)); });
}

// Elements [begin, begin + count) of a parameter, its gradient and its states.
template <int kOperands>
struct Block {
    float x[kOperands][kBlock];

    void read(const TensorGroup& group, int64_t begin, int64_t count) {
        for (int i = 0; i < kOperands; ++i) {
            with_elements(group.dtypes[i], group.data[i], [&](const auto* data) {
                for (int64_t k = 0; k < count; ++k) x[i][k] = to_float(data[begin + k]);
            });
        }
    }
    // The floats of operand `i`, to the tensor `at` of the group.
    void write(const TensorGroup& group, int64_t begin, int64_t count, int i, int at) const {
        with_elements(group.dtypes[at], group.data[at], [&](auto* data) {
            for (int64_t k = 0; k < count; ++k) from_float(x[i][k], data[begin + k]);
        });
    }
    void write_params(const TensorGroup& group, int64_t begin, int64_t count) const {
        write(group, begin, count, 0, 0);
        if (group.data[kMaxTensors - 1]) write(group, begin, count, 0, kMaxTensors - 1);
    }
    // update(x) for each element, x its value in every operand.
    template <typename Update>
    void each(int64_t count, const Update update) {  // by value: what it holds does not change under the loop
        for (int64_t k = 0; k < count; ++k) {
            float element[kOperands];
            for (int i = 0; i < kOperands; ++i) element[i] = x[i][k];
            update(element);
            for (int i = 0; i < kOperands; ++i) x[i][k] = element[i];
        }
    }
};

// Runs work(begin, end) over [0, total), on torch's threads where it pays.
template <typename Work>
void share(const Place& place, int64_t total, int64_t grain, const Work& work) {
    if (total <= grain) {
        work(0, total);
        return;
    }
    const auto part = [](int64_t begin, int64_t end, void* context) {
        (*static_cast<const Work*>(context))(begin, end);
    };
    place.parallel_for(total, grain, part, const_cast<Work*>(&work));
}

// Runs work(tensor, begin, end) for parts of at most `largest` elements of all tensors; their cut depends on the
// tensors alone.
template <typename Work>
void each_part(const TensorGroups& groups, int64_t largest, const Work& work) {
    std::vector<int64_t> first{0};  // parts of the tensors before it
    int64_t elements = 0;
    for (int64_t i = 0; i < groups.count; ++i) {
        elements += groups.items[i].numel;
        first.push_back(first.back() + (groups.items[i].numel + largest - 1) / largest);
    }
    if (elements == 0) return;
    const int64_t grain = std::max<int64_t>(1, kGrain * first.back() / elements);
    share(groups.place, first.back(), grain, [&](int64_t from, int64_t to) {
        auto tensor = std::upper_bound(first.begin(), first.end(), from) - first.begin() - 1;
        for (int64_t part = from; part < to; ++part) {
            while (part >= first[tensor + 1]) ++tensor;
            const int64_t begin = (part - first[tensor]) * largest;
            work(tensor, begin, std::min(begin + largest, groups.items[tensor].numel));
        }
    });
}

// Runs work(begin, count) over [begin, end), a block at a time.
template <typename Work>
void each_block(int64_t begin, int64_t end, const Work& work) {
    for (; begin < end; begin += kBlock) work(begin, std::min(kBlock, end - begin));
}

inline bool is_noop(const TensorGroups& groups) {
    return (*static_cast<const uint32_t*>(groups.noop) & 0x7fffffffu) != 0;
}

template <typename Numbers>
const char* launch_update(const TensorGroups& groups, const Numbers& numbers) {
    constexpr int kOperands = 2 + Numbers::Rule::kStates;
    if (is_noop(groups)) return nullptr;
    const auto rule = numbers.rule();
    each_part(groups, kGrain, [&](int64_t tensor, int64_t begin, int64_t end) {
        const TensorGroup& group = groups.items[tensor];
        Block<kOperands> block;
        each_block(begin, end, [&](int64_t at, int64_t count) {
            block.read(group, at, count);
            block.each(count, rule);
            block.write_params(group, at, count);
            for (int i = 2; i < kOperands; ++i) block.write(group, at, count, i, i);
        });
    });
    return nullptr;
}

}  // namespace opforge::cpu
