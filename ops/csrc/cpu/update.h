#pragma once

// Distributes work over torch's threads.

#include <algorithm>
#include <vector>

#include <opforge/multi_tensor.h>

#include "elementwise.h"
#include "split.h"

namespace opforge::cpu {

constexpr int64_t kPart = 4096;  // elements of one tensor that one thread processes

// Runs work(begin, end) over [0, total), also on other threads if total is larger than `grain`.
template <typename Work>
void share(const Executor& executor, int64_t total, int64_t grain, const Work& work) {
    if (total <= grain) {
        work(0, total);
        return;
    }
    const auto part = [](int64_t begin, int64_t end, void* context) {
        (*static_cast<const Work*>(context))(begin, end);
    };
    executor.parallel_for(total, grain, part, const_cast<Work*>(&work));
}

// Runs work(tensor, begin, end) over the elements of all tensors. `begin` is a multiple of kPart. Unless `whole`,
// end - begin is at most kPart, so that the partition depends only on the tensors. `split` returns the call's Split for
// the number of its elements.
template <typename Work, typename SplitOf>
void each_part(const TensorGroups& groups, bool whole, const SplitOf& split, const Work& work) {
    std::vector<int64_t> first{0};  // the number of parts of the tensors before
    first.reserve(static_cast<size_t>(groups.count) + 1);
    int64_t elements = 0;
    for (int64_t i = 0; i < groups.count; ++i) {
        elements += groups.items[i].numel;
        first.push_back(first.back() + (groups.items[i].numel + kPart - 1) / kPart);
    }
    if (elements == 0) return;
    share(groups.executor, first.back(), split(elements).units(first.back(), elements), [&](int64_t from, int64_t to) {
        auto tensor = std::upper_bound(first.begin(), first.end(), from) - first.begin() - 1;
        while (from < to) {
            while (from >= first[tensor + 1]) ++tensor;
            const int64_t next = whole ? std::min(to, first[tensor + 1]) : from + 1;
            const int64_t begin = (from - first[tensor]) * kPart, end = (next - first[tensor]) * kPart;
            work(tensor, begin, std::min(end, groups.items[tensor].numel));
            from = next;
        }
    });
}

template <typename Work>
void each_part(const TensorGroups& groups, bool whole, const Work& work) {
    each_part(groups, whole, [](int64_t) { return Split{}; }, work);
}

inline bool is_noop(const TensorGroups& groups) {
    return groups.noop && (*static_cast<const uint32_t*>(groups.noop) & 0x7fffffffu) != 0;
}

// Applies a rule that replaces all operands but the gradient, in one pass. kNarrow as for each_vector.
template <bool kNarrow, typename Rule>
const char* launch_update(const TensorGroups& groups, const Rule& rule) {
    constexpr int kOperands = 2 + Rule::kStates;
    constexpr unsigned kAll = (1u << kOperands) - 1;
    if (is_noop(groups)) return nullptr;
    const auto split = [&](int64_t elements) { return split_for(groups.items[0].dtypes[0], elements); };
    each_part(groups, true, split, [&](int64_t tensor, int64_t begin, int64_t end) {
        each_vector<kOperands, kAll, kAll & ~2u, kNarrow>(groups.items[tensor], begin, end,
                                                          [rule](Vec* x, int64_t) { rule(x); });
    });
    return nullptr;
}

}  // namespace opforge::cpu
