#pragma once

// The device code: one work group a row. All code of the kernel is in this header, so that it can be compiled ahead of
// time (softmax.sycl) and at run time (tests/run_time.cpp).

#include <sycl/sycl.hpp>

#include <cmath>
#include <cstddef>

namespace opforge_sycl {

inline void softmax_row(sycl::nd_item<1> item, const float* x, float* y, std::size_t columns) {
    const sycl::group<1> group = item.get_group();
    const float* from = x + group.get_group_linear_id() * columns;
    float* to = y + group.get_group_linear_id() * columns;
    const std::size_t lane = item.get_local_linear_id(), lanes = item.get_local_range(0);

    float greatest = -INFINITY;
    for (std::size_t i = lane; i < columns; i += lanes) greatest = sycl::fmax(greatest, from[i]);
    greatest = sycl::reduce_over_group(group, greatest, sycl::maximum<float>());

    float sum = 0.0f;
    for (std::size_t i = lane; i < columns; i += lanes) {
        to[i] = sycl::exp(from[i] - greatest);
        sum += to[i];
    }
    sum = sycl::reduce_over_group(group, sum, sycl::plus<float>());
    for (std::size_t i = lane; i < columns; i += lanes) to[i] /= sum;
}

}  // namespace opforge_sycl
