#pragma once

#include <cstring>

#include "elementwise.h"
#include "philox_lanes.h"

namespace opforge::cpu {

// Random numbers of 16 bits for the elements of a block, as Philox gives them: each depends on the element's index
// alone.
class RandomHalves {
public:
    // For elements [begin, begin + count) of the whole call; at most kBlock. Not inlined into each kernel, since that
    // would take a fifth of their compile time.
    [[gnu::noinline]] RandomHalves(const PhiloxKeys& keys, uint64_t offset, int64_t begin, int64_t count)
        : first_(begin % Philox::kCount) {
        const int64_t draws = (first_ + count + Philox::kCount - 1) / Philox::kCount;
        for (int64_t draw = 0; draw < draws; draw += PhiloxLanes::kWidth) {
            draw_philox(keys, static_cast<uint64_t>(begin / Philox::kCount + draw), offset,
                        numbers_ + draw * Philox::kCount);
        }
    }

    // The numbers, in the order of the elements. There is memory for kBlock of them.
    const uint16_t* begin() const { return numbers_ + first_; }

private:
    int64_t first_;
    alignas(64) uint16_t numbers_[kBlock + Philox::kCount * (PhiloxLanes::kWidth + 1)];
};

}  // namespace opforge::cpu
