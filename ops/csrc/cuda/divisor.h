#pragma once

#include <opforge/host_device.h>

#include <cstdint>

#include "runtime.h"

namespace opforge::cuda {

// Divides by a number that is not known at compile time, which costs more than everything else if the hardware does it.
// For dividends below 2^31.
struct Divisor {
    uint32_t factor, shift;

    explicit Divisor(uint32_t divisor) : shift(0) {
        while (shift < 31 && 1u << shift < divisor) ++shift;
        factor = static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + divisor - 1) / divisor);
    }
    __device__ uint32_t divide(uint32_t dividend) const {
        return static_cast<uint32_t>(static_cast<uint64_t>(2 * dividend) * factor >> 32) >> shift;
    }
};

}  // namespace opforge::cuda
