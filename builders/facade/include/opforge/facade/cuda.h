// CUDA on the host's side: streams, guards, events, memory, checks, properties of devices. torch's functions for CUDA
// are in a library of its own, which only a torch with CUDA has: they are looked up at their first call, so that one
// library of the facade loads beside either torch.
#pragma once
#pragma GCC system_header
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "facade.h"

struct CUDAGuardOpaque;
struct CUDAStreamGuardOpaque;

#pragma GCC visibility push(hidden)
namespace c10 {
inline namespace opforge_facade {
using DeleterFnPtr = void (*)(void*);
// Memory of a device, which is given back with this object.
class DataPtr {
public:
    DataPtr() : device_(DeviceType::CPU) {}
    DataPtr(void* data, Device device) : data_(data), device_(device) {}
    DataPtr(void* data, void* context, DeleterFnPtr deleter, Device device)
        : data_(data), context_(context, deleter), device_(device) {}
    void* operator->() const { return data_; }
    void* get() const { return data_; }
    void* mutable_get() { return data_; }
    void* get_context() const { return context_.get(); }
    void* release_context() { return context_.release(); }
    DeleterFnPtr get_deleter() const { return context_.get_deleter(); }
    void clear() {
        context_.reset();
        data_ = nullptr;
    }
    operator bool() const { return data_ || context_; }
    Device device() const { return device_; }

private:
    static void nothing(void*) {}
    void* data_ = nullptr;
    std::unique_ptr<void, DeleterFnPtr> context_{nullptr, &nothing};
    Device device_;
};
}  // namespace opforge_facade
namespace cuda {
inline namespace opforge_facade {
// A function of torch's library for CUDA that this process has loaded; null if it has none.
inline void* of_torch(const char* name) {
    static void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return library ? dlsym(library, name) : nullptr;
}
namespace shim {
#define OPFORGE_SHIM(RESULT, NAME, ...)                                                       \
    inline auto NAME() {                                                                      \
        static const auto found = reinterpret_cast<RESULT (*)(__VA_ARGS__)>(of_torch(#NAME)); \
        return found;                                                                         \
    }
OPFORGE_SHIM(AOTITorchError, aoti_torch_create_cuda_guard, int32_t, CUDAGuardOpaque**)
OPFORGE_SHIM(AOTITorchError, aoti_torch_delete_cuda_guard, CUDAGuardOpaque*)
OPFORGE_SHIM(AOTITorchError, aoti_torch_cuda_guard_set_index, CUDAGuardOpaque*, int32_t)
OPFORGE_SHIM(AOTITorchError, aoti_torch_create_cuda_stream_guard, void*, int32_t, CUDAStreamGuardOpaque**)
OPFORGE_SHIM(AOTITorchError, aoti_torch_delete_cuda_stream_guard, CUDAStreamGuardOpaque*)
OPFORGE_SHIM(AOTITorchError, aoti_torch_get_current_cuda_stream, int32_t, void**)
OPFORGE_SHIM(AOTITorchError, aoti_torch_cuda_caching_allocator_raw_alloc, uint64_t, void**)
OPFORGE_SHIM(AOTITorchError, aoti_torch_cuda_caching_allocator_raw_delete, void*)
OPFORGE_SHIM(AOTITorchError, torch_set_current_cuda_stream, void*, int32_t)
OPFORGE_SHIM(AOTITorchError, torch_get_cuda_stream_from_pool, bool, int32_t, void**)
OPFORGE_SHIM(AOTITorchError, torch_c10_cuda_check_msg, int32_t, const char*, const char*, uint32_t, bool, char**)
OPFORGE_SHIM(void, torch_c10_cuda_free_error_msg, char*)
OPFORGE_SHIM(AOTITorchError, torch_get_current_cuda_blas_handle, void**)
#undef OPFORGE_SHIM
}  // namespace shim
// Calls one of torch's functions for CUDA, and says so where this torch has none.
template <class F, class... A>
void call_cuda(const char* what, F* function, A... arguments) {
    if (!function) {
        c10::facade::fail(c10::facade::text(what, ": this torch has no such function for CUDA"));
    }
    c10::facade::check(function(arguments...), what);
}
// What an error of CUDA is, if it is one.
inline void check(int32_t error, const char* file, const char* function, uint32_t line, bool device_assertions = true) {
    if (error == 0) {
        return;
    }
    char* text = nullptr;
    if (const auto message = shim::torch_c10_cuda_check_msg()) {
        c10::facade::check(message(error, file, function, line, device_assertions, &text), "an error of CUDA");
    }
    const std::string kept =
        text ? text : c10::facade::text("CUDA error: ", cudaGetErrorString(static_cast<cudaError_t>(error)));
    if (text) {
        shim::torch_c10_cuda_free_error_msg()(text);
    }
    c10::facade::fail(kept);
}
#define C10_CUDA_CHECK(EXPR)                                                                        \
    do {                                                                                            \
        const int32_t opforge_error = static_cast<int32_t>(EXPR);                                   \
        if (C10_UNLIKELY_OR_CONST(opforge_error != 0)) {                                            \
            ::c10::cuda::check(opforge_error, __FILE__, __func__, static_cast<uint32_t>(__LINE__)); \
        }                                                                                           \
    } while (false)
#define AT_CUDA_CHECK(EXPR) C10_CUDA_CHECK(EXPR)
#define C10_CUDA_ERROR_HANDLED(EXPR) (EXPR)
#define C10_CUDA_IGNORE_ERROR(EXPR)                \
    do {                                           \
        if ((EXPR) != cudaSuccess) {               \
            static_cast<void>(cudaGetLastError()); \
        }                                          \
    } while (false)
#define C10_CUDA_CLEAR_ERROR() static_cast<void>(cudaGetLastError())
#define C10_CUDA_CHECK_WARN(EXPR)                                            \
    do {                                                                     \
        const cudaError_t opforge_error = (EXPR);                            \
        if (opforge_error != cudaSuccess) {                                  \
            static_cast<void>(cudaGetLastError());                           \
            TORCH_WARN("CUDA warning: ", cudaGetErrorString(opforge_error)); \
        }                                                                    \
    } while (false)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())

inline DeviceIndex device_count() noexcept {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());  // the next launch's check would report it
        return 0;
    }
    return static_cast<DeviceIndex>(count);
}
inline DeviceIndex current_device() {
    int32_t index = 0;
    c10::facade::check(aoti_torch_get_current_device_index(&index), "the current device");
    return static_cast<DeviceIndex>(index);
}
inline void set_device(DeviceIndex index) { C10_CUDA_CHECK(cudaSetDevice(index)); }
inline void MaybeSetDevice(DeviceIndex index) { set_device(index); }
inline void device_synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }

class CUDAStream {
public:
    CUDAStream(cudaStream_t stream, DeviceIndex index) : stream_(stream), index_(index) {}
    cudaStream_t stream() const { return stream_; }
    operator cudaStream_t() const { return stream_; }
    DeviceIndex device_index() const { return index_; }
    Device device() const { return Device(DeviceType::CUDA, index_); }
    DeviceType device_type() const { return DeviceType::CUDA; }
    bool query() const {
        const cudaError_t error = cudaStreamQuery(stream_);
        if (error == cudaErrorNotReady) {
            static_cast<void>(cudaGetLastError());
            return false;
        }
        C10_CUDA_CHECK(error);
        return true;
    }
    void synchronize() const { C10_CUDA_CHECK(cudaStreamSynchronize(stream_)); }
    friend bool operator==(const CUDAStream& a, const CUDAStream& b) {
        return a.stream_ == b.stream_ && a.index_ == b.index_;
    }
    friend bool operator!=(const CUDAStream& a, const CUDAStream& b) { return !(a == b); }

private:
    cudaStream_t stream_;
    DeviceIndex index_;
};
inline CUDAStream getCurrentCUDAStream(DeviceIndex index = -1) {
    const DeviceIndex device = index < 0 ? current_device() : index;
    void* stream = nullptr;
    call_cuda("getCurrentCUDAStream", shim::aoti_torch_get_current_cuda_stream(), device, &stream);
    return {static_cast<cudaStream_t>(stream), device};
}
inline CUDAStream getDefaultCUDAStream(DeviceIndex index = -1) {
    return {nullptr, index < 0 ? current_device() : index};
}
inline CUDAStream getStreamFromPool(bool high_priority = false, DeviceIndex index = -1) {
    const DeviceIndex device = index < 0 ? current_device() : index;
    void* stream = nullptr;
    call_cuda("getStreamFromPool", shim::torch_get_cuda_stream_from_pool(), high_priority, device, &stream);
    return {static_cast<cudaStream_t>(stream), device};
}
inline CUDAStream getStreamFromExternal(cudaStream_t stream, DeviceIndex index) { return {stream, index}; }
inline void setCurrentCUDAStream(CUDAStream stream) {
    call_cuda("setCurrentCUDAStream", shim::torch_set_current_cuda_stream(), static_cast<void*>(stream.stream()),
              stream.device_index());
}

// The device that is current while a guard lives. Without a device it changes nothing.
class OptionalCUDAGuard {
public:
    OptionalCUDAGuard() = default;
    explicit OptionalCUDAGuard(std::optional<Device> device) {
        if (device) {
            set_device(*device);
        }
    }
    explicit OptionalCUDAGuard(Device device) { set_device(device); }
    explicit OptionalCUDAGuard(DeviceIndex index) { set_index(index); }
    explicit OptionalCUDAGuard(std::optional<DeviceIndex> index) {
        if (index) {
            set_index(*index);
        }
    }
    OptionalCUDAGuard(const OptionalCUDAGuard&) = delete;
    OptionalCUDAGuard& operator=(const OptionalCUDAGuard&) = delete;
    ~OptionalCUDAGuard() { reset(); }
    void set_device(Device device) {
        if (!device.is_cuda()) {
            c10::facade::fail(c10::facade::text("Expected a CUDA device, but got ", device.str()));
        }
        set_index(device.has_index() ? device.index() : current_device());
    }
    void reset_device(Device device) { set_device(device); }
    void set_index(DeviceIndex index) {
        if (guard_) {
            call_cuda("a guard of a CUDA device", shim::aoti_torch_cuda_guard_set_index(), guard_, index);
        } else {
            call_cuda("a guard of a CUDA device", shim::aoti_torch_create_cuda_guard(), index, &guard_);
        }
    }
    void reset() {
        if (guard_) {
            shim::aoti_torch_delete_cuda_guard()(std::exchange(guard_, nullptr));
        }
    }

private:
    CUDAGuardOpaque* guard_ = nullptr;
};
class CUDAGuard : public OptionalCUDAGuard {
public:
    explicit CUDAGuard(Device device) : OptionalCUDAGuard(device) {}
    explicit CUDAGuard(DeviceIndex index) : OptionalCUDAGuard(index) {}
    Device current_device() const { return Device(DeviceType::CUDA, c10::cuda::current_device()); }
};
class CUDAStreamGuard {
public:
    explicit CUDAStreamGuard(CUDAStream stream) {
        call_cuda("a guard of a CUDA stream", shim::aoti_torch_create_cuda_stream_guard(),
                  static_cast<void*>(stream.stream()), stream.device_index(), &guard_);
    }
    CUDAStreamGuard(const CUDAStreamGuard&) = delete;
    CUDAStreamGuard& operator=(const CUDAStreamGuard&) = delete;
    ~CUDAStreamGuard() { shim::aoti_torch_delete_cuda_stream_guard()(guard_); }

private:
    CUDAStreamGuardOpaque* guard_ = nullptr;
};
}  // namespace opforge_facade

// torch's cache of a device's memory. Memory belongs to the device and the stream that are current when it is taken.
namespace CUDACachingAllocator {
inline namespace opforge_facade {
inline void* raw_alloc(size_t bytes) {
    void* memory = nullptr;
    if (bytes != 0) {
        call_cuda("CUDACachingAllocator", shim::aoti_torch_cuda_caching_allocator_raw_alloc(),
                  static_cast<uint64_t>(bytes), &memory);
    }
    return memory;
}
inline void raw_delete(void* memory) {
    if (memory != nullptr) {
        call_cuda("CUDACachingAllocator", shim::aoti_torch_cuda_caching_allocator_raw_delete(), memory);
    }
}
class CUDAAllocator {
public:
    DataPtr allocate(size_t bytes) {
        void* const memory = raw_alloc(bytes);
        return {memory, memory, &CUDACachingAllocator::raw_delete, Device(DeviceType::CUDA, cuda::current_device())};
    }
    void* raw_allocate(size_t bytes) { return raw_alloc(bytes); }
    void raw_deallocate(void* memory) { raw_delete(memory); }
    void* raw_alloc(size_t bytes) { return CUDACachingAllocator::raw_alloc(bytes); }
    void raw_delete(void* memory) { CUDACachingAllocator::raw_delete(memory); }
};
inline CUDAAllocator* get() {
    static CUDAAllocator allocator;
    return &allocator;
}
}  // namespace opforge_facade
}  // namespace CUDACachingAllocator
}  // namespace cuda
}  // namespace c10

namespace at {
namespace cuda {
using namespace c10::cuda;
inline namespace opforge_facade {
inline bool is_available() { return device_count() > 0; }
inline int64_t getNumGPUs() { return device_count(); }
// The properties of a device, read once in a process.
inline cudaDeviceProp* getDeviceProperties(DeviceIndex index) {
    static std::mutex lock;
    static std::map<DeviceIndex, cudaDeviceProp> all;
    std::lock_guard<std::mutex> hold(lock);
    auto found = all.find(index);
    if (found == all.end()) {
        cudaDeviceProp properties;
        C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
        found = all.emplace(index, properties).first;
    }
    return &found->second;
}
// Whether all tensors are on the current device.
OPFORGE_IF_USED
bool check_device(TensorList tensors) {
    return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& t) {
        return t.device() == Device(DeviceType::CUDA, c10::cuda::current_device());
    });
}
inline cudaDeviceProp* getCurrentDeviceProperties() { return getDeviceProperties(c10::cuda::current_device()); }
inline int warp_size() { return getCurrentDeviceProperties()->warpSize; }
inline c10::cuda::CUDACachingAllocator::CUDAAllocator* getCUDADeviceAllocator() {
    return c10::cuda::CUDACachingAllocator::get();
}

// An event, which is created on a stream's device when it is first recorded.
class CUDAEvent {
public:
    CUDAEvent() noexcept = default;
    CUDAEvent(unsigned int flags) noexcept : flags_(flags) {}
    CUDAEvent(CUDAEvent&& other) noexcept { swap(other); }
    CUDAEvent& operator=(CUDAEvent&& other) noexcept {
        swap(other);
        return *this;
    }
    ~CUDAEvent() {
        if (is_created_) {
            try {
                const c10::cuda::CUDAGuard guard(device_);
                C10_CUDA_CHECK_WARN(cudaEventDestroy(event_));
            } catch (...) {  // a destructor does not throw
            }
        }
    }
    operator cudaEvent_t() const { return event_; }
    cudaEvent_t event() const { return event_; }
    bool isCreated() const { return is_created_; }
    DeviceIndex device_index() const { return device_; }
    std::optional<Device> device() const {
        return is_created_ ? std::optional<Device>(Device(DeviceType::CUDA, device_)) : std::nullopt;
    }
    bool query() const {
        if (!is_created_) {
            return true;
        }
        const cudaError_t error = cudaEventQuery(event_);
        if (error == cudaErrorNotReady) {
            static_cast<void>(cudaGetLastError());
            return false;
        }
        C10_CUDA_CHECK(error);
        return true;
    }
    void record() { record(c10::cuda::getCurrentCUDAStream()); }
    void recordOnce(const c10::cuda::CUDAStream& stream) {
        if (!was_recorded_) {
            record(stream);
        }
    }
    void record(const c10::cuda::CUDAStream& stream) {
        if (!is_created_) {
            create(stream.device_index());
        }
        TORCH_CHECK(device_ == stream.device_index(), "Event device ", static_cast<int>(device_),
                    " does not match recording stream's device ", static_cast<int>(stream.device_index()), ".");
        const c10::cuda::CUDAGuard guard(device_);
        C10_CUDA_CHECK(cudaEventRecord(event_, stream.stream()));
        was_recorded_ = true;
    }
    void block(const c10::cuda::CUDAStream& stream) {
        if (is_created_) {
            const c10::cuda::CUDAGuard guard(stream.device_index());
            C10_CUDA_CHECK(cudaStreamWaitEvent(stream.stream(), event_, 0));
        }
    }
    float elapsed_time(const CUDAEvent& other) const {
        TORCH_CHECK_VALUE(!(flags_ & cudaEventDisableTiming) && !(other.flags_ & cudaEventDisableTiming),
                          "Both events must be created with argument 'enable_timing=True'.");
        TORCH_CHECK_VALUE(is_created_ && other.is_created_,
                          "Both events must be recorded before calculating elapsed time.");
        TORCH_CHECK(query() && other.query(), "Both events must be completed before calculating elapsed time.");
        const c10::cuda::CUDAGuard guard(device_);
        float milliseconds = 0;
        C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, event_, other.event_));
        return milliseconds;
    }
    void synchronize() const {
        if (is_created_) {
            C10_CUDA_CHECK(cudaEventSynchronize(event_));
        }
    }

private:
    void create(DeviceIndex device) {
        const c10::cuda::CUDAGuard guard(device);
        C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags_));
        device_ = device;
        is_created_ = true;
    }
    void swap(CUDAEvent& other) noexcept {
        std::swap(flags_, other.flags_);
        std::swap(is_created_, other.is_created_);
        std::swap(was_recorded_, other.was_recorded_);
        std::swap(device_, other.device_);
        std::swap(event_, other.event_);
    }
    unsigned int flags_ = cudaEventDisableTiming;
    bool is_created_ = false, was_recorded_ = false;
    DeviceIndex device_ = -1;
    cudaEvent_t event_ = nullptr;
};
template <class T>
T ATenCeilDiv(T a, T b) {
    return (a + b - 1) / b;
}
}  // namespace opforge_facade
}  // namespace cuda
}  // namespace at
#pragma GCC visibility pop
