// CUDA's generators: the seed and the offset that a kernel begins to draw at. torch's Python object has both, and takes
// the offset behind them. While a graph is captured torch refuses that, with its reason.
#pragma once
#pragma GCC system_header
#include "cuda.h"

#pragma GCC visibility push(hidden)
namespace at {
inline namespace opforge_facade {
struct PhiloxCudaState {
    PhiloxCudaState() = default;
    PhiloxCudaState(uint64_t seed, uint64_t offset) {
        seed_.val = seed;
        offset_.val = offset;
    }
    PhiloxCudaState(int64_t* seed, int64_t* offset_extragraph, uint64_t offset_intragraph)
        : offset_intragraph_(offset_intragraph), captured_(true) {
        seed_.ptr = seed;
        offset_.ptr = offset_extragraph;
    }
    union Payload {
        uint64_t val;
        int64_t* ptr;
    };
    Payload seed_{};
    Payload offset_{};
    uint64_t offset_intragraph_ = 0;
    bool captured_ = false;
};
class CUDAGeneratorImpl {
public:
    template <class F>
    explicit CUDAGeneratorImpl(F object) : generator_(c10::facade::generator_of(std::move(object))) {}
    static DeviceType device_type() { return DeviceType::CUDA; }
    uint64_t current_seed() const { return generator_.current_seed(); }
    uint64_t seed() const { return generator_.seed(); }
    void set_current_seed(uint64_t seed) const { generator_.set_current_seed(seed); }
    uint64_t get_offset() const { return generator_.get_offset(); }
    void set_offset(uint64_t offset) const { generator_.set_offset(offset); }
    uint64_t philox_offset_per_thread() const { return get_offset(); }
    void set_philox_offset_per_thread(uint64_t offset) const { set_offset(offset); }
    // Returns the seed and the offset, and moves the offset on, to a multiple of 4 as torch does.
    std::pair<uint64_t, uint64_t> philox_engine_inputs(uint64_t increment) const {
        const uint64_t offset = get_offset();
        set_offset(offset + (increment + 3) / 4 * 4);
        return {current_seed(), offset};
    }
    PhiloxCudaState philox_cuda_state(uint64_t increment) const {
        const auto [seed, offset] = philox_engine_inputs(increment);
        return {seed, offset};
    }
    std::mutex mutex_;

private:
    Generator generator_;
};
}  // namespace opforge_facade
namespace cuda {
inline namespace opforge_facade {
namespace detail {
// A generator of a device's for each thread: what locks it may wait for Python's lock within.
inline const Generator& getDefaultCUDAGenerator(DeviceIndex index = -1) {
    thread_local std::map<DeviceIndex, Generator> all;
    const DeviceIndex device = index < 0 ? c10::cuda::current_device() : index;
    Generator& found = all[device];
    if (!found.defined()) {
        found = c10::facade::generator_of([device] {
            namespace python = ::opforge_facade_python;
            const python::Ref cuda = python::imported("torch.cuda");
            python::called(python::attribute(cuda.get(), "init").get());
            return python::checked(opforge_PyObject_GetItem(python::attribute(cuda.get(), "default_generators").get(),
                                                            python::Convert<int64_t>::cast(device).get()));
        });
    }
    return found;
}
}  // namespace detail
namespace philox {
__host__ __device__ __forceinline__ std::tuple<uint64_t, uint64_t> unpack(PhiloxCudaState state) {
    if (state.captured_) {
        return {static_cast<uint64_t>(*state.seed_.ptr),
                static_cast<uint64_t>(*state.offset_.ptr) + state.offset_intragraph_};
    }
    return {state.seed_.val, state.offset_.val};
}
}  // namespace philox
}  // namespace opforge_facade
}  // namespace cuda
}  // namespace at
#pragma GCC visibility pop
