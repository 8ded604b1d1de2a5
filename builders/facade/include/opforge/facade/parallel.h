// at::parallel_for and its like, and the guards of grad mode.
#pragma once
#include "symbols.h"
#include "tensor.h"

// torch's own for Linux: sources ask which threads at::parallel_for has.
#ifndef AT_PARALLEL_OPENMP
#define AT_PARALLEL_OPENMP 1
#endif
#ifndef AT_PARALLEL_NATIVE
#define AT_PARALLEL_NATIVE 0
#endif

namespace at {
inline namespace opforge_facade {
namespace facade {
// How deep this thread is in parallel_for's own function, and which part of the range it has.
inline int& parallel_depth() {
    static thread_local int depth = 0;
    return depth;
}
struct InParallel {
    InParallel() { ++parallel_depth(); }
    ~InParallel() { --parallel_depth(); }
    InParallel(const InParallel&) = delete;
    InParallel& operator=(const InParallel&) = delete;
};
}  // namespace facade
namespace internal {
constexpr int64_t GRAIN_SIZE = 32768;
}  // namespace internal

constexpr int64_t divup(int64_t x, int64_t y) { return (x + y - 1) / y; }
inline int get_num_threads() {
    uint32_t n = 1;
    facade::check(torch_get_num_threads(&n), "get_num_threads()");
    return static_cast<int>(n);
}
inline int get_thread_num() {
    uint32_t n = 0;
    facade::check(torch_get_thread_idx(&n), "get_thread_num()");
    return static_cast<int>(n);
}
namespace facade {
// An error of torch's own has where it was raised behind its text.
OPFORGE_IF_USED
void set_threads(const char* what, const char* symbol, int n) {
    try {
        c10::facade::torch_function<void(int)>(what, symbol)(n);
    } catch (const std::exception& e) {
        const std::string text = e.what();
        fail(text.substr(0, text.find("\nException raised from ")));
    }
}
}  // namespace facade
OPFORGE_IF_USED
void set_num_threads(int n) { facade::set_threads("set_num_threads", "_ZN2at15set_num_threadsEi", n); }
OPFORGE_IF_USED
void set_num_interop_threads(int n) {
    facade::set_threads("set_num_interop_threads", "_ZN2at23set_num_interop_threadsEi", n);
}
OPFORGE_IF_USED
size_t get_num_interop_threads() {
    return c10::facade::torch_function<size_t()>("get_num_interop_threads", "_ZN2at23get_num_interop_threadsEv")();
}
OPFORGE_IF_USED
int intraop_default_num_threads() {
    return c10::facade::torch_function<int()>("intraop_default_num_threads", "_ZN2at27intraop_default_num_threadsEv")();
}
inline bool in_parallel_region() { return facade::parallel_depth() > 0; }
inline void init_num_threads() {}
inline void lazy_init_num_threads() {}

struct GradMode {
    static bool is_enabled() { return aoti_torch_grad_mode_is_enabled(); }
    static void set_enabled(bool enabled) { aoti_torch_grad_mode_set_enabled(enabled); }
};
class AutoGradMode {
public:
    AutoGradMode(bool enabled) { GradMode::set_enabled(enabled); }
    ~AutoGradMode() { GradMode::set_enabled(before_); }
    AutoGradMode(const AutoGradMode&) = delete;
    AutoGradMode& operator=(const AutoGradMode&) = delete;

private:
    bool before_ = GradMode::is_enabled();
};
class NoGradGuard : public AutoGradMode {
public:
    NoGradGuard() : AutoGradMode(false) {}
};

template <class F>
void parallel_for(const int64_t begin, const int64_t end, const int64_t grain_size, const F& f) {
    if (begin >= end) {
        return;
    }
    // An exception would lose its text on its way through torch: the first one is kept and thrown here.
    struct Work {
        const F& f;
        const bool has_grad_mode;  // a thread's own: torch's threads would record what a NoGradGuard here leaves out
        std::mutex lock;
        std::exception_ptr thrown;
    } work{f, GradMode::is_enabled(), {}, nullptr};
    auto part = [](int64_t first, int64_t last, void* context) {
        auto& w = *static_cast<Work*>(context);
        facade::InParallel in_parallel;
        AutoGradMode grad_mode(w.has_grad_mode);
        try {
            w.f(first, last);
        } catch (...) {
            std::lock_guard<std::mutex> hold(w.lock);
            if (!w.thrown) {
                w.thrown = std::current_exception();
            }
        }
    };
    facade::check(torch_parallel_for(begin, end, grain_size, part, &work), "parallel_for");
    if (work.thrown) {
        std::rethrow_exception(work.thrown);
    }
}
template <class T, class F, class C>
T parallel_reduce(const int64_t begin, const int64_t end, const int64_t grain_size, const T identity, const F& f,
                  const C& combine) {
    if (begin >= end) {
        return identity;
    }
    if (in_parallel_region() || get_num_threads() == 1) {
        return f(begin, end, identity);
    }
    // parts of the range by their begin, so that they are combined in its order
    std::map<int64_t, T> parts;
    std::mutex lock;
    parallel_for(begin, end, grain_size, [&](int64_t first, int64_t last) {
        T r = f(first, last, identity);
        std::lock_guard<std::mutex> hold(lock);
        parts.emplace(first, r);
    });
    T result = identity;
    for (const auto& part : parts) {
        result = combine(result, part.second);
    }
    return result;
}
inline void intraop_launch(const std::function<void()>& f) { f(); }
}  // namespace opforge_facade
}  // namespace at

namespace c10 {
inline namespace opforge_facade {
using at::AutoGradMode;
using at::GradMode;
using at::NoGradGuard;
}  // namespace opforge_facade
}  // namespace c10
