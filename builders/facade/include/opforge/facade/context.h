// What the facade has of at::globalContext(): torch's settings of determinism, each of which takes the context alone
// and returns a bool, and the begin of a device.
#pragma once
#include "checks.h"
#include "factories.h"
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
    // What torch was built with, and whether there is a device.
#define OPFORGE_PART(NAME, LENGTH)                                                                          \
    template <int Used = 0>                                                                                 \
    static bool NAME() {                                                                                    \
        return c10::facade::torch_function<bool()>("globalContext", "_ZN2at7Context" #LENGTH #NAME "Ev")(); \
    }
    OPFORGE_PART(hasMKL, 6)
    OPFORGE_PART(hasLAPACK, 9)
    OPFORGE_PART(hasMKLDNN, 9)
    OPFORGE_PART(hasOpenMP, 9)
#undef OPFORGE_PART
    OPFORGE_IF_USED
    static bool hasCUDA() {
        return c10::facade::torch_function<bool()>("globalContext", "_ZN5torch4cuda12is_availableEv")();
    }
    // torch begins with a device where a tensor is made on it.
    OPFORGE_IF_USED
    void lazyInitDevice(DeviceType type) const { empty({0}, TensorOptions(type)); }
    OPFORGE_IF_USED
    void lazyInitCUDA() const { lazyInitDevice(DeviceType::CUDA); }
    OPFORGE_IF_USED
    static void alertNotDeterministic(std::string_view caller) {
        const Context settings;
        if (!settings.deterministicAlgorithms()) {
            return;
        }
        if (settings.deterministicAlgorithmsWarnOnly()) {
            TORCH_WARN(caller,
                       " does not have a deterministic implementation, but you set "
                       "'torch.use_deterministic_algorithms(True, warn_only=True)'. You can file an issue at "
                       "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support "
                       "for this operation.");
            return;
        }
        TORCH_CHECK(false, caller,
                    " does not have a deterministic implementation, but you set "
                    "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation, "
                    "or you can use the 'warn_only=True' option, if that's acceptable for your application. You can "
                    "also file an issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding "
                    "deterministic support for this operation.");
    }

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
OPFORGE_IF_USED
bool hasCUDA() { return Context::hasCUDA(); }
OPFORGE_IF_USED
bool hasMKL() { return Context::hasMKL(); }
OPFORGE_IF_USED
bool hasLAPACK() { return Context::hasLAPACK(); }
OPFORGE_IF_USED
bool hasMKLDNN() { return Context::hasMKLDNN(); }
OPFORGE_IF_USED
bool hasOpenMP() { return Context::hasOpenMP(); }
}  // namespace opforge_facade
}  // namespace at
#pragma GCC visibility pop
