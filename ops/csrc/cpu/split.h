#pragma once

// How the elements of a call are shared among torch's threads: what `opforge tune` tries on this machine.

#include <cstdint>

#include <opforge/dtype.h>

namespace opforge::cpu {

constexpr int64_t kGrain = 16384;  // elements; less work is not worth waking a thread

struct Split {
    int64_t grain = kGrain;
    int64_t threads = 0;  // at most so many; 0 for all

    // The grain of `total` units of work that have `elements` elements together.
    int64_t units(int64_t total, int64_t elements) const {
        const int64_t part = grain * total / (elements > 1 ? elements : 1);
        const int64_t least = threads > 0 ? (total + threads - 1) / threads : 1;
        return part > least ? part : least > 1 ? least : 1;
    }
};

// The split of a call, from split.cpp.
Split split_for(DType dtype, int64_t elements);

}  // namespace opforge::cpu
