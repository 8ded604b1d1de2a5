#pragma once

// What a multi-tensor op's two sides say to each other: the one that faces torch, and the kernels of a device.

#include <cstdint>

#include <opforge/dtype.h>

namespace opforge {

constexpr int kMaxStates = 2;
constexpr int kMaxTensors = 3 + kMaxStates;

// The tensors of one parameter, all of one size and one order of elements: the parameter, its gradient, its states, and
// last, if its address is not null, where the new parameter is also written in a dtype of its own.
struct TensorGroup {
    void* data[kMaxTensors];
    DType dtypes[kMaxTensors];
    int64_t numel;
};

// Where kernels run: a stream of the current device, or torch's threads.
struct Place {
    void* stream;
    void (*parallel_for)(int64_t total, int64_t grain, void (*part)(int64_t, int64_t, void*), void* context);
};

// A call's tensors. Nothing is updated where the 32-bit number at `noop`, on the device, is not zero: an int's, or a
// float's. On the host there may be none.
struct TensorGroups {
    const TensorGroup* items;
    int64_t count;
    const void* noop;
    Place place;
};

}  // namespace opforge
