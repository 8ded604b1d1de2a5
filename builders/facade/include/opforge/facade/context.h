// torch's settings of determinism, as at::globalContext() has them. The stable ABI has no functions for them: those of
// libtorch are looked up by their names at the first call. They take the context alone and return a bool in each torch
// from 2.10 to 2.15; if a later torch has no function of the name, the call is an error that says so.
#pragma once
#include "checks.h"

#pragma GCC visibility push(hidden)
namespace at {
inline namespace opforge_facade {
class Context {
public:
#define OPFORGE_SETTING(NAME, LENGTH)                                                                \
    template <int Used = 0>                                                                          \
    bool NAME() const {                                                                              \
        static const auto found = function<bool(const void*)>("_ZNK2at7Context" #LENGTH #NAME "Ev"); \
        return found(context());                                                                     \
    }
    OPFORGE_SETTING(deterministicAlgorithms, 23)
    OPFORGE_SETTING(deterministicAlgorithmsWarnOnly, 31)
    OPFORGE_SETTING(deterministicCuDNN, 18)
    OPFORGE_SETTING(deterministicMkldnn, 19)
    OPFORGE_SETTING(deterministicFillUninitializedMemory, 36)
#undef OPFORGE_SETTING

private:
    template <class F>
    static F* function(const char* symbol) {
        static void* const library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
        void* const found = library ? dlsym(library, symbol) : nullptr;
        if (!found) {
            c10::facade::fail(c10::facade::text("globalContext: this torch has no function ", symbol));
        }
        return reinterpret_cast<F*>(found);
    }
    static const void* context() {
        static const auto found = function<const void*()>("_ZN2at13globalContextEv");
        return found();
    }
};
inline Context& globalContext() {
    static Context context;
    return context;
}
}  // namespace opforge_facade
}  // namespace at
#pragma GCC visibility pop
