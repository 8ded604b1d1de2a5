// Launches the kernels of a library with nothing but the driver: no compiler, no Triton, no CUDA runtime.
//
// opforge_find prepares a kernel for a device: it chooses the image, loads it, and returns a handle that is valid until
// the process ends. opforge_launch launches the kernel. Both return null, or an error message; when a launch returns
// null, the driver has accepted it. Both may be called from any thread.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "driver.h"
#include "opforge/kernel_image.h"

#define OPFORGE_EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {
// The linker defines these symbols at the section's ends. They are local to this library, and null if every kernel was
// left out.
extern const opforge_image* const __start_opforge_images[] __attribute__((visibility("hidden"), weak));
extern const opforge_image* const __stop_opforge_images[] __attribute__((visibility("hidden"), weak));
}

namespace opforge::launcher {
namespace {

constexpr unsigned kParameters = 64;
constexpr unsigned kArches = 32;
constexpr uint64_t kGrid = 0x7fffffff, kOtherGrid = 65535;  // blocks along x; along y and z

struct Ready {
    const opforge_image* image;
    Driver* driver;
    void* function;
    int device;
    Ready* next;
};

std::mutex& mutex() {
    static std::mutex* mutex = new std::mutex;
    return *mutex;
}
Ready* all_ready = nullptr;  // guarded by the mutex; never freed, since callers hold pointers into it

enum class Kind { kExact, kFamily, kText, kOther };

struct Arch {
    Kind kind;
    int capability;
};

Arch read_arch(const char* name) {
    char* end = nullptr;
    if (!std::strncmp(name, "compute_", 8)) return {Kind::kText, static_cast<int>(std::strtol(name + 8, &end, 10))};
    if (std::strncmp(name, "sm_", 3)) return {Kind::kOther, 0};
    const int capability = static_cast<int>(std::strtol(name + 3, &end, 10));
    return {*end ? Kind::kExact : Kind::kFamily, capability};
}

// Returns how well an image fits a device; 0 if it cannot run there. Code for a compute capability also runs on later
// ones with the same major number, unless it is for one capability only. PTX is compiled by the driver, and runs on
// every later one.
int fitness(const char* name, int capability) {
    const Arch arch = read_arch(name);
    if (arch.kind == Kind::kOther) return 1;
    if (arch.capability > capability) return 0;
    if (arch.kind == Kind::kExact) return arch.capability == capability ? 1000000 : 0;
    if (arch.kind == Kind::kText) return 1 + arch.capability;
    return arch.capability / 10 == capability / 10 ? 1000 + arch.capability : 0;
}

Driver& driver_of(const opforge_image* image) { return std::strncmp(image->arch, "gfx", 3) ? cuda() : hip(); }

const char* make_ready(const opforge_image* image, Driver& driver, int device, const Limits& limits, void** function) {
    if (limits.shared_memory > 0 && image->shared > static_cast<unsigned>(limits.shared_memory)) {
        return refuse("it needs %u bytes of shared memory a block, and the device has %d", image->shared,
                      limits.shared_memory);
    }
    if (const char* problem = driver.enter(device)) return problem;
    void* module = nullptr;
    const char* problem = driver.load(image->data, &module);
    if (!problem) problem = driver.find(module, image->symbol, function);
    if (!problem) problem = driver.allow_shared_memory(*function, static_cast<int>(image->shared));
    driver.leave();
    return problem;
}

void append(char* list, size_t size, const char* text) {
    const size_t used = std::strlen(list);
    if (used + std::strlen(text) + 3 > size) return;
    if (used) std::strcat(list, ", ");
    std::strcat(list, text);
}

const char* choose(const char* kernel, int device, Ready** out) {
    const opforge_image* candidates[kArches];
    unsigned count = 0;
    char built[256] = "";
    for (const opforge_image* const* image = __start_opforge_images; image != __stop_opforge_images; ++image) {
        if (std::strcmp((*image)->kernel, kernel) || count == kArches) continue;
        candidates[count++] = *image;
        append(built, sizeof built, (*image)->arch);
    }
    if (!count) {
        return refuse("the library holds no kernel '%s': if it is declared, a warning of the build says why", kernel);
    }
    Driver& driver = driver_of(candidates[0]);
    Limits limits = {};
    if (const char* problem = driver.open()) return problem;
    if (const char* problem = driver.limits(device, &limits)) return problem;
    const opforge_image* best = nullptr;
    int best_fitness = 0;
    const char* problem = nullptr;
    void* function = nullptr;
    for (unsigned i = 0; i < count; ++i) {
        const int fit = fitness(candidates[i]->arch, limits.capability);
        if (!limits.capability) {  // the runtime decides which image is for this device
            problem = make_ready(candidates[i], driver, device, limits, &function);
            best = candidates[i];
            if (!problem) break;
        } else if (fit > best_fitness) {
            best = candidates[i];
            best_fitness = fit;
        }
    }
    if (!best) {
        return refuse("it is built for %s, and device %d is sm_%d: build it for that too", built, device,
                      limits.capability);
    }
    if (limits.capability) problem = make_ready(best, driver, device, limits, &function);
    if (problem && !limits.capability && count > 1) {
        char last[256];
        std::snprintf(last, sizeof last, "%s", problem);  // a copy: `refuse` writes to the buffer of `problem`
        return refuse("none of its images (%s) can be loaded: %s", built, last);
    }
    if (problem) return problem;
    *out = new Ready{best, &driver, function, device, all_ready};
    all_ready = *out;
    return nullptr;
}

}  // namespace
}  // namespace opforge::launcher

using opforge::launcher::all_ready;
using opforge::launcher::Ready;

// Returns the library's images, one per line: NAME ARCH BYTES SHARED THREADS. The text stays valid.
OPFORGE_EXPORT const char* opforge_kernels() {
    static const char* const text = [] {
        size_t size = 1;
        for (auto image = __start_opforge_images; image != __stop_opforge_images; ++image) {
            size += std::strlen((*image)->kernel) + std::strlen((*image)->arch) + 64;
        }
        char* out = static_cast<char*>(std::calloc(size, 1));
        size_t used = 0;
        for (auto image = __start_opforge_images; out && image != __stop_opforge_images; ++image) {
            used +=
                static_cast<size_t>(std::snprintf(out + used, size - used, "%s %s %zu %u %u\n", (*image)->kernel,
                                                  (*image)->arch, (*image)->size, (*image)->shared, (*image)->threads));
        }
        return out;
    }();
    return text;
}

OPFORGE_EXPORT const char* opforge_find(const char* kernel, int device, const Ready** out) {
    const std::lock_guard<std::mutex> guard(opforge::launcher::mutex());
    for (Ready* ready = all_ready; ready; ready = ready->next) {
        if (ready->device == device && !std::strcmp(ready->image->kernel, kernel)) {
            *out = ready;
            return nullptr;
        }
    }
    Ready* ready = nullptr;
    const char* problem = opforge::launcher::choose(kernel, device, &ready);
    *out = ready;
    return problem;
}

// `arguments` holds the kernel's run-time arguments, each in a slot of eight bytes. A grid with a 0 launches nothing.
OPFORGE_EXPORT const char* opforge_launch(const Ready* kernel, void* stream, uint64_t x, uint64_t y, uint64_t z,
                                          const uint64_t* arguments) {
    using namespace opforge::launcher;
    if (!x || !y || !z) return nullptr;
    if (x > kGrid || y > kOtherGrid || z > kOtherGrid) {
        const auto wide = [](uint64_t number) { return static_cast<unsigned long long>(number); };
        return refuse("the grid is %llu x %llu x %llu, and at most %llu x %llu x %llu can be launched", wide(x),
                      wide(y), wide(z), wide(kGrid), wide(kOtherGrid), wide(kOtherGrid));
    }
    const opforge_image& image = *kernel->image;
    const unsigned total = image.parameters + image.hidden;
    if (total > kParameters) return refuse("it has %u parameters, and at most %u can be passed", total, kParameters);
    void* parameters[kParameters];
    uint64_t none = 0;
    for (unsigned i = 0; i < image.parameters; ++i) {
        if (image.aligned >> i & 1 && arguments[i] % 16) {
            return refuse("argument %u was declared to be divisible by 16, and is %llu", i,
                          static_cast<unsigned long long>(arguments[i]));
        }
        parameters[i] = const_cast<uint64_t*>(&arguments[i]);
    }
    for (unsigned i = image.parameters; i < total; ++i) parameters[i] = &none;
    const unsigned grid[3] = {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
    if (const char* problem = kernel->driver->enter(kernel->device)) return problem;
    const char* problem =
        kernel->driver->launch(kernel->function, grid, image.threads, image.shared, stream, parameters);
    kernel->driver->leave();
    return problem;
}
