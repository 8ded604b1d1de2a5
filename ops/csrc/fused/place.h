#pragma once

// Where a call runs: the device that the library was built for, made current, and its current stream.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <opforge/multi_tensor.h>

#include <string>

#include "../cpu/arguments.h"

#if defined(OPFORGE_GPU)
// In libtorch_cuda, and under this name in ROCm's torch too. torch declares it for those who define USE_CUDA.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);
#endif

namespace opforge::fused {

using namespace opforge::cpu;  // what faces torch is the same for every device

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

// Makes a tensor's device the current one for as long as it lives.
class Here {
public:
    explicit Here(AtenTensorHandle tensor) {
#if defined(OPFORGE_GPU)
        const int32_t index = device_index(tensor);
        check_shim(aoti_torch_create_device_guard(index, &guard_), "a guard of the device");
        check_shim(aoti_torch_get_current_cuda_stream(index, &place_.stream), "the current stream");
#else
        static_cast<void>(tensor);
        place_.parallel_for = &parallel_for;
#endif
    }
    Here(const Here&) = delete;
    Here& operator=(const Here&) = delete;
    ~Here() {
        if (guard_) aoti_torch_delete_device_guard(guard_);
    }

    const Place& place() const { return place_; }

private:
    DeviceGuardHandle guard_ = nullptr;
    Place place_{};
};

// `problem` is what a launch gave.
inline void check_launch(const char* op, const char* problem) {
    if (problem) refuse(std::string("the kernel of ") + op + " did not start: " + problem);
}

}  // namespace opforge::fused
