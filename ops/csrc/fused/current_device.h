#pragma once

// Where a call runs: the device that the library was built for, which is made the current one, and its current stream.

#include <opforge/multi_tensor.h>
#include <opforge/shim.h>

#include "../cpu/arguments.h"

#if defined(OPFORGE_GPU)
// Defined in libtorch_cuda; ROCm's torch has it under the same name. torch declares it only if USE_CUDA is defined.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);
#endif

namespace opforge::fused {

using namespace opforge::cpu;  // the torch side is the same for every device

#if defined(OPFORGE_GPU)
constexpr const char* kDevice = "cuda";
#else
constexpr const char* kDevice = "cpu";
#endif

inline int32_t device_index(AtenTensorHandle tensor) {
    int32_t index;
    check_shim(aoti_torch_get_device_index(tensor, &index), "the device's index");
    return index;
}

// Throws unless a tensor is on this library's device number `index`, the device of the tensor `where`. `at` is the
// tensor's index in the list `name`, or -1 if that is not a list.
[[gnu::noinline]] inline void check_same_device(AtenTensorHandle tensor, const char* name, int64_t at, int32_t index,
                                                const char* where) {
    check_device(device_name(tensor), kDevice, name, at);
    const int32_t own = device_index(tensor);
    if (own == index) return;
    refuse({Word(name, at), " is on ", kDevice, ":", own, ", expected ", kDevice, ":", index, ", where ", where,
            " is: make one call for each device"});
}

// Makes a tensor's device the current one for the lifetime of this object.
class DeviceGuard {
public:
    DeviceGuard(AtenTensorHandle tensor, const char* name) {
        check_device(device_name(tensor), kDevice, name, -1);
#if defined(OPFORGE_GPU)
        const int32_t index = device_index(tensor);
        check_shim(aoti_torch_create_device_guard(index, &guard_), "a guard of the device");
        check_shim(aoti_torch_get_current_cuda_stream(index, &executor_.stream), "the current stream");
#else
        executor_.parallel_for = &parallel_for;
#endif
    }
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;
    ~DeviceGuard() {
        if (guard_) aoti_torch_delete_device_guard(guard_);
    }

    const Executor& executor() const { return executor_; }

private:
    DeviceGuardHandle guard_ = nullptr;
    Executor executor_{};
};

// Throws if `problem`, the result of a launch, is not null.
inline void check_launch(const char* op, const char* problem) {
    if (problem) refuse({"the kernel of ", op, " did not start: ", problem});
}

}  // namespace opforge::fused
