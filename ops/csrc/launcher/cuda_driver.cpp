// NVIDIA's driver API, by its documented names and constants.

#include <atomic>

#include "driver.h"

namespace opforge::launcher {
namespace {

using Result = int;
constexpr Result kSuccess = 0;
constexpr int kMajor = 75, kMinor = 76, kSharedMemoryOptIn = 97;  // CUdevice_attribute
constexpr int kMaxDynamicSharedMemory = 8;                        // CUfunction_attribute
constexpr unsigned kDefaultShared = 48u << 10;                    // more must be requested
constexpr int kRelaxed = 2;                                       // CUstreamCaptureMode
constexpr int kDevices = 64;

struct Functions {
    Result (*cuInit)(unsigned);
    Result (*cuDriverGetVersion)(int*);
    Result (*cuGetErrorString)(Result, const char**);
    Result (*cuDeviceGet)(int*, int);
    Result (*cuDeviceGetAttribute)(int*, int, int);
    Result (*cuDevicePrimaryCtxRetain)(void**, int);
    Result (*cuCtxGetCurrent)(void**);
    Result (*cuCtxPushCurrent)(void*);
    Result (*cuCtxPopCurrent)(void**);
    Result (*cuThreadExchangeStreamCaptureMode)(int*);
    Result (*cuModuleLoadData)(void**, const void*);
    Result (*cuModuleGetFunction)(void**, void*, const char*);
    Result (*cuFuncSetAttribute)(void*, int, int);
    Result (*cuLaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                             void**);
};

class CudaDriver final : public Driver {
public:
    const char* open() override {
        if (open_) return nullptr;
        static const char* const names[] = {"libcuda.so.1", "libcuda.so", nullptr};
        void* library = nullptr;
        if (const char* problem = open_library("the CUDA driver", names, &library)) return problem;
        const struct {
            const char* name;
            void* function;
        } symbols[] = {
            {"cuInit", &call_.cuInit},
            {"cuDriverGetVersion", &call_.cuDriverGetVersion},
            {"cuGetErrorString", &call_.cuGetErrorString},
            {"cuDeviceGet", &call_.cuDeviceGet},
            {"cuDeviceGetAttribute", &call_.cuDeviceGetAttribute},
            {"cuDevicePrimaryCtxRetain", &call_.cuDevicePrimaryCtxRetain},
            {"cuCtxGetCurrent", &call_.cuCtxGetCurrent},
            {"cuCtxPushCurrent_v2", &call_.cuCtxPushCurrent},
            {"cuCtxPopCurrent_v2", &call_.cuCtxPopCurrent},
            {"cuThreadExchangeStreamCaptureMode", &call_.cuThreadExchangeStreamCaptureMode},
            {"cuModuleLoadData", &call_.cuModuleLoadData},
            {"cuModuleGetFunction", &call_.cuModuleGetFunction},
            {"cuFuncSetAttribute", &call_.cuFuncSetAttribute},
            {"cuLaunchKernel", &call_.cuLaunchKernel},
        };
        for (const auto& symbol : symbols) {
            const char* problem =
                find_symbol(library, "the CUDA driver", symbol.name, static_cast<void**>(symbol.function));
            if (problem) return problem;
        }
        if (const char* problem = problem_of(call_.cuInit(0), "cuInit")) return problem;
        open_ = true;
        return nullptr;
    }

    const char* limits(int device, Limits* out) override {
        int handle = 0, major = 0, minor = 0;
        if (const char* problem = problem_of(call_.cuDeviceGet(&handle, device), "cuDeviceGet")) return problem;
        Result result = call_.cuDeviceGetAttribute(&major, kMajor, handle);
        if (!result) result = call_.cuDeviceGetAttribute(&minor, kMinor, handle);
        if (!result) result = call_.cuDeviceGetAttribute(&out->shared_memory, kSharedMemoryOptIn, handle);
        out->capability = major * 10 + minor;
        return problem_of(result, "cuDeviceGetAttribute");
    }

    // Uses the device's primary context, as torch does. A thread that has launched nothing yet has no current context.
    const char* enter(int device) override {
        void* context = nullptr;
        if (const char* problem = primary(device, &context)) return problem;
        void* current = nullptr;
        if (const char* problem = problem_of(call_.cuCtxGetCurrent(&current), "cuCtxGetCurrent")) return problem;
        pushed() = current != context;
        return pushed() ? problem_of(call_.cuCtxPushCurrent(context), "cuCtxPushCurrent") : nullptr;
    }

    void leave() override {
        void* ours = nullptr;
        if (pushed()) call_.cuCtxPopCurrent(&ours);
        pushed() = false;
    }

    // While this thread captures a graph, the driver would reject loading, because it allocates memory. The relaxed
    // mode permits it; loading is not part of the graph.
    const char* load(const void* image, void** module) override {
        int mode = kRelaxed;
        const Result exchanged = call_.cuThreadExchangeStreamCaptureMode(&mode);
        const Result result = call_.cuModuleLoadData(module, image);
        if (exchanged == kSuccess) call_.cuThreadExchangeStreamCaptureMode(&mode);
        return problem_of(result, "cuModuleLoadData");
    }

    const char* find(void* module, const char* symbol, void** function) override {
        return problem_of(call_.cuModuleGetFunction(function, module, symbol), "cuModuleGetFunction");
    }

    const char* allow_shared_memory(void* function, int bytes) override {
        if (bytes <= static_cast<int>(kDefaultShared)) return nullptr;
        return problem_of(call_.cuFuncSetAttribute(function, kMaxDynamicSharedMemory, bytes), "cuFuncSetAttribute");
    }

    const char* launch(void* function, const unsigned grid[3], unsigned threads, unsigned shared, void* stream,
                       void** parameters) override {
        const Result result = call_.cuLaunchKernel(function, grid[0], grid[1], grid[2], threads, 1, 1, shared, stream,
                                                   parameters, nullptr);
        return problem_of(result, "cuLaunchKernel");
    }

private:
    static bool& pushed() {
        thread_local bool pushed = false;
        return pushed;
    }

    // Retained once and never released, since the context must exist as long as the process.
    const char* primary(int device, void** out) {
        if (device < 0 || device >= kDevices) return refuse("there is no CUDA device %d", device);
        *out = primaries_[device].load(std::memory_order_acquire);
        if (*out) return nullptr;
        int handle = 0;
        if (const char* problem = problem_of(call_.cuDeviceGet(&handle, device), "cuDeviceGet")) return problem;
        const Result result = call_.cuDevicePrimaryCtxRetain(out, handle);
        if (!result) primaries_[device].store(*out, std::memory_order_release);
        return problem_of(result, "cuDevicePrimaryCtxRetain");
    }

    const char* problem_of(Result result, const char* function) {
        if (result == kSuccess) return nullptr;
        const char* text = nullptr;
        int version = 0;
        if (call_.cuGetErrorString(result, &text) != kSuccess || !text) text = "unknown error";
        call_.cuDriverGetVersion(&version);
        return refuse("%s: %s (error %d; the driver supports CUDA %d.%d)", function, text, result, version / 1000,
                      version % 1000 / 10);
    }

    Functions call_ = {};
    bool open_ = false;
    std::atomic<void*> primaries_[kDevices] = {};
};

}  // namespace

Driver& cuda() {
    static CudaDriver* driver = new CudaDriver;  // never destroyed: kernels may be launched while the process exits
    return *driver;
}

}  // namespace opforge::launcher
