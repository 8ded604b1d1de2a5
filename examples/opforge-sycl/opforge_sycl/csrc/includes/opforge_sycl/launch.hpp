#pragma once

// The function of softmax.sycl that softmax.cpp calls. softmax.cpp includes no SYCL header, softmax.sycl none of torch.

#include <cstdint>

namespace opforge_sycl {

// Returns an error message, or nullptr. Submits the work to `queue`, a sycl::queue, and does not wait for it.
const char* softmax(void* queue, const float* x, float* y, int64_t rows, int64_t columns);

}  // namespace opforge_sycl
