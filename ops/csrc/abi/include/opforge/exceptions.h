// Keeps C++ exceptions inside a library that contains a C++ runtime of its own.
//
// A library built with libc++ (by zig) contains its own unwinder and its own exception types. If one of its exceptions
// reached torch's frames, the process would end. So a kernel's exception is caught here, within the library, and thrown
// again by the libstdc++ that torch uses, from a frame that needs no runtime function while it is unwound. With
// libstdc++ there is only one runtime, and only exceptions in workers of parallel_for need handling.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <exception>
#include <mutex>

namespace opforge {

// Runs `callback` on torch's threads. The first exception of any of them is thrown again here, in the caller: torch
// itself passes no message to a library that is built for a version before 2.13.
inline AOTITorchError guarded_parallel_for(int64_t begin, int64_t end, int64_t grain,
                                           void (*callback)(int64_t, int64_t, void*), void* context) {
    struct Work {
        void (*callback)(int64_t, int64_t, void*);
        void* context;
        std::mutex lock;
        std::exception_ptr problem;
    } work{callback, context, {}, nullptr};
    const AOTITorchError code = torch_parallel_for(
        begin, end, grain,
        [](int64_t first, int64_t last, void* opaque) {
            Work& mine = *static_cast<Work*>(opaque);
            try {
                mine.callback(first, last, mine.context);
            } catch (...) {
                const std::lock_guard<std::mutex> hold(mine.lock);
                if (!mine.problem) {
                    mine.problem = std::current_exception();
                }
            }
        },
        &work);
    if (work.problem) {
        std::rethrow_exception(work.problem);
    }
    return code;
}

}  // namespace opforge

#ifdef _LIBCPP_VERSION

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace opforge {

using Boxed = void (*)(StableIValue*, uint64_t, uint64_t);

// The size of the buffer for an exception's message: a plain array, so that its frame needs no cleanup.
constexpr int kMessage = 4096;

// Runs the kernel. Returns whether it threw, with the message. No exception leaves this function.
[[gnu::noinline]] inline bool threw(Boxed kernel, StableIValue* stack, uint64_t in, uint64_t out,
                                    char* message) noexcept {
    try {
        kernel(stack, in, out);
        return false;
    } catch (const std::exception& problem) {
        std::snprintf(message, kMessage, "%s", problem.what());
    } catch (...) {
        std::snprintf(message, kMessage, "%s", "an exception that is no std::exception");
    }
    return true;
}

// Throws std::runtime_error of the libstdc++ in this process. It has no cleanup, and therefore no personality routine
// that an unwinder would call.
[[noreturn, gnu::noinline]] inline void throw_in_torch(const char* message) {
    using Throw = void (*)(const char*);
    void* runtime = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
    const auto raise = runtime ? reinterpret_cast<Throw>(dlsym(runtime, "_ZSt21__throw_runtime_errorPKc")) : nullptr;
    if (raise) {
        raise(message);
    }
    std::fprintf(stderr, "opforge: %s (and no libstdc++ is in this process to report it)\n", message);
    std::abort();
}

template <Boxed kernel>
void guarded(StableIValue* stack, uint64_t in, uint64_t out) {
    char message[kMessage];
    if (threw(kernel, stack, in, out, message)) {
        throw_in_torch(message);
    }
}

// A kernel whose exceptions stay inside the library: the only kind that may be registered.
struct Guarded {
    Boxed kernel;
};

}  // namespace opforge

// The argument of `impl` for a kernel that reads its arguments from the stack itself.
#define OPFORGE_BOXED(...) (::opforge::Guarded{&::opforge::guarded<(__VA_ARGS__)>})

#else
#define OPFORGE_BOXED(...) (__VA_ARGS__)
#endif
