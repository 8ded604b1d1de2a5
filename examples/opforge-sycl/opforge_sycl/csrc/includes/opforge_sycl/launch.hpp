#pragma once

// What softmax.cpp, which faces torch, calls of softmax.sycl. Neither sees the other's headers.

#include <cstdint>

namespace opforge_sycl {

// Give what went wrong, or nullptr. `queue` is a sycl::queue; the work is submitted to it and not waited for.
const char* softmax(void* queue, const float* x, float* y, int64_t rows, int64_t columns);

}  // namespace opforge_sycl
