// torch's dispatcher as sources use it: calls of an op by its name, and guards below which a kernel calls its own op
// again without being asked itself. The guards are torch's own, which Python has.
#pragma once
#include "graph.h"
#include "library.h"
#include "symbols.h"

namespace c10 {
inline namespace opforge_facade {
template <class S>
class TypedOperatorHandle;
template <class R, class... A>
class TypedOperatorHandle<R(A...)> {
    template <class T>
    using bare = opforge_facade_detail::bare_t<T>;

public:
    TypedOperatorHandle(std::string name, std::string overload)
        : name_(std::move(name)), overload_(std::move(overload)) {}
    R call(A... arguments) const {
        compare();
        if constexpr (std::is_reference_v<R>) {  // what it returns is the tensor that it changes
            at::facade::call<bare<R>>(name_.c_str(), overload_.c_str(), static_cast<const bare<A>&>(arguments)...);
            return first_changed(arguments...);
        } else {
            return at::facade::call<bare<R>>(name_.c_str(), overload_.c_str(),
                                             static_cast<const bare<A>&>(arguments)...);
        }
    }
    template <class... B>
    R redispatch(B&&...) const {
        static_assert(sizeof...(B) < 0,
                      "redispatch: the facade has no sets of dispatch keys. Call the op by call() below a guard such "
                      "as at::AutoDispatchBelowADInplaceOrView, or build this source with torch's own headers "
                      "(opforge: abi=\"torch\").");
    }

private:
    // 64 bits would be read as another type without a word. This is not done where the handle is made: that is a
    // static's initializer, where one thread would wait for the GIL, and one that has it for the static.
    void compare() const {
        namespace python = ::opforge_facade_python;
        if (__atomic_load_n(&is_compared_, __ATOMIC_ACQUIRE) || at::in_parallel_region() || !opforge_Py_IsInitialized ||
            !opforge_Py_IsInitialized()) {
            return;
        }
        opforge_facade_detail::Declared declared;
        try {
            python::in_python("findSchemaOrThrow", [&] {
                auto text = [](const std::string& t) {
                    return python::checked(
                        opforge_PyUnicode_FromStringAndSize(t.data(), static_cast<OpforgePySize>(t.size())));
                };
                const python::Ref schema =
                    python::called(python::attribute(python::imported("torch._C").get(), "_get_schema").get(),
                                   text(name_), text(overload_));
                const python::Ref shown = python::checked(opforge_PyObject_Str(schema.get()));
                python::Convert<std::string>::load(shown.get(), true, declared.schema);
            });
        } catch (const Error&) {
            facade::fail(facade::text("Could not find schema for ", name_, overload_.empty() ? "" : ".", overload_));
        }
        declared.functions.push_back(opforge_facade_detail::Boxed<int, R(A...)>::arguments());
        opforge_facade_detail::compare(name_, declared);
        __atomic_store_n(&is_compared_, true, __ATOMIC_RELEASE);
    }
    template <class T, class... B>
    static at::Tensor& first_changed(T& first, B&... rest) {
        if constexpr (std::is_same_v<T, at::Tensor>) {
            return first;
        } else {
            return first_changed(rest...);
        }
    }
    std::string name_, overload_;
    mutable bool is_compared_ = false;
};
class OperatorHandle {
public:
    OperatorHandle(std::string name, std::string overload) : name_(std::move(name)), overload_(std::move(overload)) {}
    template <class F>
    TypedOperatorHandle<F> typed() const {
        return {name_, overload_};
    }

private:
    std::string name_, overload_;
};
// The op is looked up, and its schema compared, at the first call: what does not fit is an error there.
class Dispatcher {
public:
    static Dispatcher& singleton() {
        static Dispatcher one;
        return one;
    }
    OPFORGE_IF_USED
    OperatorHandle findSchemaOrThrow(const char* name, const char* overload) const {
        std::string full = name;
        const size_t colons = full.find("::");
        const auto found = torch::renamed().find(full.substr(0, colons));
        if (colons != std::string::npos && found != torch::renamed().end()) {
            full = found->second + full.substr(colons);
        }
        return {std::move(full), overload};
    }
};

namespace facade {
OPFORGE_IF_USED
::opforge_facade_python::Ref key_object(const ::opforge_facade_python::Ref& torch, DispatchKey key) {
    namespace python = ::opforge_facade_python;
    return python::attribute(python::attribute(torch.get(), "DispatchKey").get(), toString(key));
}
}  // namespace facade
}  // namespace opforge_facade
namespace impl {
inline namespace opforge_facade {
class ExcludeDispatchKeyGuard : facade::Guard {
public:
    OPFORGE_IF_USED
    explicit ExcludeDispatchKeyGuard(DispatchKey key)
        : facade::Guard("ExcludeDispatchKeyGuard", [key](const ::opforge_facade_python::Ref& torch) {
              return facade::guard_object(torch, "_SetExcludeDispatchKeyGuard", facade::key_object(torch, key),
                                          ::opforge_facade_python::flag(true));
          }) {}
};
class IncludeDispatchKeyGuard : facade::Guard {
public:
    OPFORGE_IF_USED
    explicit IncludeDispatchKeyGuard(DispatchKey key)
        : facade::Guard("IncludeDispatchKeyGuard", [key](const ::opforge_facade_python::Ref& torch) {
              return facade::guard_object(torch, "_IncludeDispatchKeyGuard", facade::key_object(torch, key));
          }) {}
};
}  // namespace opforge_facade
}  // namespace impl
}  // namespace c10

namespace at {
inline namespace opforge_facade {
using c10::Dispatcher;
#define OPFORGE_GUARD(NAME, OBJECT)                                                     \
    class NAME : c10::facade::Guard {                                                   \
    public:                                                                             \
        OPFORGE_IF_USED                                                                 \
        NAME()                                                                          \
            : c10::facade::Guard(#NAME, [](const ::opforge_facade_python::Ref& torch) { \
                  return c10::facade::guard_object(torch, OBJECT);                      \
              }) {}                                                                     \
    };
OPFORGE_GUARD(AutoDispatchBelowAutograd, "_AutoDispatchBelowAutograd")
OPFORGE_GUARD(AutoDispatchBelowADInplaceOrView, "_AutoDispatchBelowADInplaceOrView")
#undef OPFORGE_GUARD
class AutoNonVariableTypeMode : AutoDispatchBelowAutograd {
public:
    OPFORGE_IF_USED
    explicit AutoNonVariableTypeMode(bool = true) {}
};

// Casts below a guard of autocast's key. torch keeps the casts of parameters until autocast ends: here each is made.
namespace autocast {
OPFORGE_IF_USED
bool is_autocast_enabled(DeviceType device) {
    return c10::facade::torch_function<bool(DeviceType)>(
        "is_autocast_enabled", "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE")(device);
}
OPFORGE_IF_USED
ScalarType get_autocast_dtype(DeviceType device) {
    return c10::facade::torch_function<ScalarType(DeviceType)>(
        "get_autocast_dtype", "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE")(device);
}
OPFORGE_IF_USED
bool is_enabled() { return is_autocast_enabled(DeviceType::CUDA); }
OPFORGE_IF_USED
bool is_cpu_enabled() { return is_autocast_enabled(DeviceType::CPU); }
OPFORGE_IF_USED
ScalarType get_autocast_gpu_dtype() { return get_autocast_dtype(DeviceType::CUDA); }
OPFORGE_IF_USED
ScalarType get_autocast_cpu_dtype() { return get_autocast_dtype(DeviceType::CPU); }
OPFORGE_IF_USED
Tensor cached_cast(ScalarType to, const Tensor& tensor, DeviceType device = DeviceType::CUDA) {
    const bool can = tensor.defined() && tensor.device().type() == device && tensor.is_floating_point() &&
                     tensor.scalar_type() != ScalarType::Double;
    return can && tensor.scalar_type() != to ? tensor.to(to) : tensor;
}
OPFORGE_IF_USED
std::optional<Tensor> cached_cast(ScalarType to, const std::optional<Tensor>& tensor,
                                  DeviceType device = DeviceType::CUDA) {
    return tensor ? std::optional<Tensor>(cached_cast(to, *tensor, device)) : std::nullopt;
}
OPFORGE_IF_USED
std::vector<Tensor> cached_cast(ScalarType to, TensorList list, DeviceType device = DeviceType::CUDA) {
    std::vector<Tensor> made;
    for (const Tensor& tensor : list) {
        made.push_back(cached_cast(to, tensor, device));
    }
    return made;
}
}  // namespace autocast
}  // namespace opforge_facade
}  // namespace at
namespace torch {
inline namespace opforge_facade {
using c10::Dispatcher;
using c10::DispatchKey;
}  // namespace opforge_facade
}  // namespace torch
