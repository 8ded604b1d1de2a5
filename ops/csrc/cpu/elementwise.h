#pragma once

#include <cstring>
#include <utility>

#include "kernel.h"
#include "vec.h"

namespace opforge::cpu {

// The last elements, fewer than Vec::kWidth: in copies padded to a whole vector, through `kernel` itself. So an
// element's result depends neither on its place nor on how a range was split over threads, and no loop is compiled
// twice.
__attribute__((noinline)) inline void update_tail(Kernel kernel, const void* scalars, void* const* data,
                                                  const size_t* item_sizes, int operands, int64_t begin, int64_t end) {
    alignas(64) char padded[kMaxOperands][Vec::kWidth * sizeof(float)] = {};
    void* copies[kMaxOperands];
    const size_t count = static_cast<size_t>(end - begin);
    for (int i = 0; i < operands; ++i) {
        const size_t size = item_sizes[i];
        copies[i] = padded[i];
        std::memcpy(padded[i], static_cast<const char*>(data[i]) + static_cast<size_t>(begin) * size, count * size);
    }
    kernel(scalars, copies, 0, Vec::kWidth);
    for (int i = 0; i < operands; ++i) {
        const size_t size = item_sizes[i];
        if (i != kGradient) {
            std::memcpy(static_cast<char*>(data[i]) + static_cast<size_t>(begin) * size, padded[i], count * size);
        }
    }
}

template <typename... T, typename Step, size_t... I>
void update(Kernel kernel, const void* scalars, void* const* data, int64_t begin, int64_t end, const Step& step,
            std::index_sequence<I...>) {
    int64_t i = begin;
    for (; i + Vec::kWidth <= end; i += Vec::kWidth) step((static_cast<T*>(data[I]) + i)...);
    if (i < end) {
        constexpr size_t kItemSizes[] = {sizeof(T)...};
        update_tail(kernel, scalars, data, kItemSizes, sizeof...(T), i, end);
    }
}

// The body of a kernel whose operands have the types T: step(pointers...) once for each Vec::kWidth elements, then the
// tail.
template <typename... T, typename Step>
void update(Kernel kernel, const void* scalars, void* const* data, int64_t begin, int64_t end, const Step& step) {
    static_assert(sizeof...(T) <= kMaxOperands, "raise kMaxOperands");
    update<T...>(kernel, scalars, data, begin, end, step, std::index_sequence_for<T...>{});
}

}  // namespace opforge::cpu
