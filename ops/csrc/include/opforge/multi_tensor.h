#pragma once

// The interface between the two sides of a multi-tensor op: the torch side, and the kernels of a device.

#include <cstdint>

#include <opforge/dtype.h>

namespace opforge {

constexpr int kMaxStates = 2;
constexpr int kMaxTensors = 3 + kMaxStates;

// The tensors of one parameter, all of one size and one order of elements: the parameter, its gradient, its states. The
// last address, if not null, is where a copy of the new parameter is written, in a dtype of its own.
struct TensorGroup {
    void* data[kMaxTensors];
    DType dtypes[kMaxTensors];
    int64_t numel;
};

// What kernels run on: a stream of the current device, or torch's thread pool.
struct Executor {
    void* stream;
    void (*parallel_for)(int64_t total, int64_t grain, void (*part)(int64_t, int64_t, void*), void* context);
};

// A call's tensors. If the 32-bit number at `noop` on the device, an int or a float, is not zero, nothing is updated.
// On the CPU `noop` may be null.
struct TensorGroups {
    const TensorGroup* items;
    int64_t count;
    const void* noop;
    Executor executor;
};

}  // namespace opforge
