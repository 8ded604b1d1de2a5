// AMD's HIP runtime, by its documented names and constants.

#include "driver.h"

namespace opforge::launcher {
namespace {

using Result = int;
constexpr Result kSuccess = 0;

struct Functions {
    Result (*hipInit)(unsigned);
    Result (*hipDriverGetVersion)(int*);
    const char* (*hipGetErrorString)(Result);
    Result (*hipGetDevice)(int*);
    Result (*hipSetDevice)(int);
    Result (*hipModuleLoadData)(void**, const void*);
    Result (*hipModuleGetFunction)(void**, void*, const char*);
    Result (*hipModuleLaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                                    void**, void**);
};

class HipDriver final : public Driver {
public:
    const char* open() override {
        if (open_) return nullptr;
        // torch's wheels contain the first; ROCm installs the others.
        static const char* const names[] = {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6",
                                            "libamdhip64.so.5", nullptr};
        void* library = nullptr;
        if (const char* problem = open_library("the HIP runtime", names, &library)) return problem;
        const struct {
            const char* name;
            void* function;
        } symbols[] = {
            {"hipInit", &call_.hipInit},
            {"hipDriverGetVersion", &call_.hipDriverGetVersion},
            {"hipGetErrorString", &call_.hipGetErrorString},
            {"hipGetDevice", &call_.hipGetDevice},
            {"hipSetDevice", &call_.hipSetDevice},
            {"hipModuleLoadData", &call_.hipModuleLoadData},
            {"hipModuleGetFunction", &call_.hipModuleGetFunction},
            {"hipModuleLaunchKernel", &call_.hipModuleLaunchKernel},
        };
        for (const auto& symbol : symbols) {
            const char* problem =
                find_symbol(library, "the HIP runtime", symbol.name, static_cast<void**>(symbol.function));
            if (problem) return problem;
        }
        if (const char* problem = problem_of(call_.hipInit(0), "hipInit")) return problem;
        open_ = true;
        return nullptr;
    }

    // The runtime itself rejects images for another architecture, and shared memory needs no permission.
    const char* limits(int, Limits* out) override {
        *out = {0, 64 << 10};
        return nullptr;
    }

    const char* enter(int device) override {
        int& before = left();
        if (const char* problem = problem_of(call_.hipGetDevice(&before), "hipGetDevice")) return problem;
        if (before == device) {
            before = -1;
            return nullptr;
        }
        return problem_of(call_.hipSetDevice(device), "hipSetDevice");
    }

    void leave() override {
        if (left() >= 0) call_.hipSetDevice(left());
        left() = -1;
    }

    const char* load(const void* image, void** module) override {
        return problem_of(call_.hipModuleLoadData(module, image), "hipModuleLoadData");
    }

    const char* find(void* module, const char* symbol, void** function) override {
        return problem_of(call_.hipModuleGetFunction(function, module, symbol), "hipModuleGetFunction");
    }

    const char* allow_shared_memory(void*, int) override { return nullptr; }

    const char* launch(void* function, const unsigned grid[3], unsigned threads, unsigned shared, void* stream,
                       void** parameters) override {
        const Result result = call_.hipModuleLaunchKernel(function, grid[0], grid[1], grid[2], threads, 1, 1, shared,
                                                          stream, parameters, nullptr);
        return problem_of(result, "hipModuleLaunchKernel");
    }

private:
    // The device to restore, or -1.
    static int& left() {
        thread_local int device = -1;
        return device;
    }

    const char* problem_of(Result result, const char* function) {
        if (result == kSuccess) return nullptr;
        const char* text = call_.hipGetErrorString(result);
        int version = 0;
        call_.hipDriverGetVersion(&version);
        return refuse("%s: %s (error %d; HIP %d)", function, text ? text : "unknown error", result, version);
    }

    Functions call_ = {};
    bool open_ = false;
};

}  // namespace

Driver& hip() {
    static HipDriver* driver = new HipDriver;
    return *driver;
}

}  // namespace opforge::launcher
