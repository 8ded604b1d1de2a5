// torch's settings of determinism, as at::globalContext() has them: each takes the context alone, and returns a bool.
#pragma once
#include "symbols.h"

#pragma GCC visibility push(hidden)
namespace at {
inline namespace opforge_facade {
class Context {
public:
#define OPFORGE_SETTING(NAME, LENGTH)                                                                              \
    template <int Used = 0>                                                                                        \
    bool NAME() const {                                                                                            \
        static const auto found =                                                                                  \
            c10::facade::torch_function<bool(const void*)>("globalContext", "_ZNK2at7Context" #LENGTH #NAME "Ev"); \
        return found(context());                                                                                   \
    }
    OPFORGE_SETTING(deterministicAlgorithms, 23)
    OPFORGE_SETTING(deterministicAlgorithmsWarnOnly, 31)
    OPFORGE_SETTING(deterministicCuDNN, 18)
    OPFORGE_SETTING(deterministicMkldnn, 19)
    OPFORGE_SETTING(deterministicFillUninitializedMemory, 36)
#undef OPFORGE_SETTING

private:
    static const void* context() {
        static const auto found =
            c10::facade::torch_function<const void*()>("globalContext", "_ZN2at13globalContextEv");
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
