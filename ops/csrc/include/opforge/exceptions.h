// Keeps C++ exceptions inside a library that brings a C++ runtime of its own.
//
// A library built with libc++ (zig does) holds its own unwinder and its own exception types. One of its exceptions that
// reaches torch's frames ends the process. So a kernel's exception is caught here, within the library, and thrown anew
// by the libstdc++ that torch uses, from a frame that asks no runtime for anything while it is unwound. With libstdc++
// there is one runtime, and only what a worker of parallel_for throws needs a hand.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <exception>
#include <mutex>

namespace opforge {

// torch's threads call `callback`; the first exception of any of them is thrown anew here, in the caller. torch itself
// would keep its words back from a library that is built for a version before 2.13.
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

// Room for the message of an exception: a plain array, so that the frame that holds it has nothing to clean up.
constexpr int kMessage = 4096;

// Runs the kernel. Returns whether it threw, with its message. Nothing leaves this function but by its return.
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

// Throws std::runtime_error, of the libstdc++ in this process. It has no cleanup, and so no handler that would be
// asked.
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

// A kernel whose exceptions stay inside: the only kind that may be registered.
struct Guarded {
    Boxed kernel;
};

}  // namespace opforge

// What `impl` takes for a kernel that reads its arguments off the stack itself.
#define OPFORGE_BOXED(...) (::opforge::Guarded{&::opforge::guarded<(__VA_ARGS__)>})

#else
#define OPFORGE_BOXED(...) (__VA_ARGS__)
#endif
