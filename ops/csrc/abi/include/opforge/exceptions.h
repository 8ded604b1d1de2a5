// What happens to an exception of a kernel: its message gets the paths of files, and it stays inside a library that
// contains a C++ runtime of its own.
//
// A library built with libc++ (by zig) contains its own unwinder and its own exception types. If one of its exceptions
// reached torch's frames, the process would end. So a kernel's exception is caught here, within the library, and thrown
// again by the libstdc++ that torch uses, from a frame that needs no runtime function while it is unwound. With
// libstdc++ there is only one runtime, and only exceptions in workers of parallel_for need handling.
#pragma once

#include <opforge/registration.h>
#include <opforge/shim.h>

#include <atomic>
#include <cctype>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <typeinfo>

namespace opforge {

using Boxed = void (*)(StableIValue*, uint64_t, uint64_t);

// Returns whether NAME/FILE:LINE begins at `at`, and nothing that belongs to another word precedes it.
inline bool is_location(const std::string& text, size_t at) {
    const size_t colon = text.find(':', text.find('/', at));
    const size_t space = text.find_first_of(" \n", at);
    return (at == 0 || text[at - 1] == ' ' || text[at - 1] == '\n') && colon != std::string::npos && colon < space &&
           colon + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[colon + 1]));
}

// Returns a message with the folder of a root in place of its name where NAME/FILE:LINE is: compiled paths name roots.
[[gnu::cold, gnu::noinline]] inline std::string with_paths(const char* message) {
    std::string text = message;
    const std::string& lines = roots();
    for (size_t begin = 0, end = 0; (end = lines.find('\n', begin)) != std::string::npos; begin = end + 1) {
        const size_t equals = lines.find('=', begin);
        const std::string name = lines.substr(begin, equals - begin) + '/';
        const std::string folder = lines.substr(equals + 1, end - equals - 1) + '/';
        for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
            if (is_location(text, at)) {
                text.replace(at, name.size(), folder);
                at += folder.size();
            }
        }
    }
    return text;
}

// Runs `callback` on torch's threads. The first exception of any of them is thrown again here, in the caller: torch
// itself passes no message to a library that is built for a version before 2.13.
inline AOTITorchError guarded_parallel_for(int64_t begin, int64_t end, int64_t grain,
                                           void (*callback)(int64_t, int64_t, void*), void* context) {
    struct Work {
        void (*callback)(int64_t, int64_t, void*);
        void* context;
        std::atomic<bool> has_problem;
        std::exception_ptr problem;
    } work{callback, context, {false}, nullptr};
    const AOTITorchError code = torch_parallel_for(
        begin, end, grain,
        [](int64_t first, int64_t last, void* opaque) {
            Work& mine = *static_cast<Work*>(opaque);
            try {
                mine.callback(first, last, mine.context);
            } catch (...) {
                if (!mine.has_problem.exchange(true)) {
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

namespace opforge {

// Ends the process, and says which exception nobody has caught, or left a function that is noexcept.
[[noreturn, gnu::cold]] inline void end_process() noexcept {
    const char* text = "std::terminate was called";
    const std::exception_ptr problem = std::current_exception();
    try {
        if (problem) std::rethrow_exception(problem);
    } catch (const std::exception& error) {
        text = error.what();
    } catch (...) {
        text = "an exception that is no std::exception";
    }
    std::fprintf(stderr, "opforge: the process is ended by: %s\n", text);
    std::abort();
}

}  // namespace opforge

// The variables of libc++abi that hold its handlers. Its own name an exception's type, by a demangler that would be
// more than half of a library. These are weak: a source that sets a handler, or demangles, gets those of libc++abi.
extern "C" {
__attribute__((weak, visibility("hidden"))) void (*__cxa_terminate_handler)() = &opforge::end_process;
__attribute__((weak, visibility("hidden"))) void (*__cxa_unexpected_handler)() = &opforge::end_process;
__attribute__((weak, visibility("hidden"))) void (*__cxa_new_handler)() = nullptr;
}

namespace opforge {

// The size of the buffer for an exception's message: a plain array, so that its frame needs no cleanup.
constexpr int kMessage = 4096;

// Runs the kernel. Returns whether it threw, with the message. No exception leaves this function.
[[gnu::noinline]] inline bool threw(Boxed kernel, StableIValue* stack, uint64_t in, uint64_t out,
                                    char* message) noexcept {
    try {
        kernel(stack, in, out);
        return false;
    } catch (const std::exception& problem) {
        std::snprintf(message, kMessage, "%s", with_paths(problem.what()).c_str());
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
    Boxed boxed;
};

}  // namespace opforge

// The argument of `impl` for a kernel that reads its arguments from the stack itself.
#define OPFORGE_BOXED(...) (::opforge::Guarded{&::opforge::guarded<(__VA_ARGS__)>})
#define OPFORGE_CAUGHT guarded

#else

namespace opforge {

// Throws the exception that is being handled again: a plain std::runtime_error, which is that of STD_TORCH_CHECK, with
// the paths of files in its message; any other one as it is, since torch makes another Python error of it.
[[noreturn, gnu::cold, gnu::noinline]] inline void rethrow_with_paths() {
#ifdef __cpp_rtti
    try {
        throw;
    } catch (const std::runtime_error& problem) {
        if (typeid(problem) == typeid(std::runtime_error)) {
            throw std::runtime_error(with_paths(problem.what()));
        }
        throw;
    }
#else
    throw;
#endif
}

template <Boxed kernel>
void located(StableIValue* stack, uint64_t in, uint64_t out) {
    try {
        kernel(stack, in, out);
    } catch (...) {
        rethrow_with_paths();
    }
}

}  // namespace opforge

#define OPFORGE_BOXED(...) (__VA_ARGS__)
#define OPFORGE_CAUGHT located
#endif
