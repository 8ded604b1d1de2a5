// What sources ask of autograd's graph, of its modes and of torch's generators: Python's functions of torch do it, as
// the stable ABI has none.
#pragma once
#include "function.h"

namespace opforge_facade_python {
// Calls a function of a module or a method with what is given, which may come from any thread that Python can wait for.
template <class F>
auto in_python(const char* what, F f) {
    if (at::in_parallel_region()) {
        c10::facade::fail(c10::facade::text(what,
                                            " within parallel_for is not possible in the facade: it runs Python, "
                                            "and the thread that waits for this one may hold its lock"));
    }
    if (!opforge_Py_IsInitialized || !opforge_Py_IsInitialized()) {
        c10::facade::fail(c10::facade::text(what, " of the facade needs Python in its process"));
    }
    Gil gil;
    try {
        return f();
    } catch (const Raised& e) {
        constexpr std::string_view kind = "RuntimeError: ";
        const std::string_view text = e.what();
        if (text.substr(0, kind.size()) == kind) {  // what torch throws in C++
            c10::facade::fail(std::string(text.substr(kind.size())));
        }
        throw;
    }
}
template <class... A>
Ref with_names(const Ref& f, const Ref& values, const A&... named) {
    Ref names = checked(opforge_PyDict_New());
    (checked(opforge_PyDict_SetItemString(names.get(), named.first, named.second.get())), ...);
    return checked(opforge_PyObject_Call(f.get(), values.get(), names.get()));
}
OPFORGE_IF_USED
Ref tuple_or_none(const std::vector<at::Tensor>& list) { return list.empty() ? Ref::borrow(none()) : tuple_of(list); }
OPFORGE_IF_USED
Ref flag(std::optional<bool> value) { return value ? checked(opforge_PyBool_FromLong(*value)) : Ref::borrow(none()); }
OPFORGE_IF_USED
Ref values_of(const Ref& one) {
    Ref tuple = checked(opforge_PyTuple_New(1));
    checked(opforge_PyTuple_SetItem(tuple.get(), 0, Ref(one).release()));
    return tuple;
}
}  // namespace opforge_facade_python

namespace torch {
inline namespace opforge_facade {
namespace autograd {
OPFORGE_IF_USED
void backward(const variable_list& tensors, const variable_list& gradients = {},
              std::optional<bool> retain_graph = std::nullopt, bool create_graph = false,
              const variable_list& inputs = {}) {
    namespace python = ::opforge_facade_python;
    python::in_python("torch::autograd::backward", [&] {
        python::Ref f = python::attribute(python::imported("torch.autograd").get(), "backward");
        python::with_names(f, python::values_of(python::tuple_of(tensors)),
                           std::pair("grad_tensors", python::tuple_or_none(gradients)),
                           std::pair("retain_graph", python::flag(retain_graph)),
                           std::pair("create_graph", python::flag(create_graph)),
                           std::pair("inputs", python::tuple_or_none(inputs)));
    });
}
OPFORGE_IF_USED
variable_list grad(const variable_list& outputs, const variable_list& inputs, const variable_list& gradients = {},
                   std::optional<bool> retain_graph = std::nullopt, bool create_graph = false,
                   bool allow_unused = false) {
    namespace python = ::opforge_facade_python;
    return python::in_python("torch::autograd::grad", [&] {
        python::Ref f = python::attribute(python::imported("torch.autograd").get(), "grad");
        python::Ref values = python::checked(opforge_PyTuple_New(2));
        python::checked(opforge_PyTuple_SetItem(values.get(), 0, python::tuple_of(outputs).release()));
        python::checked(opforge_PyTuple_SetItem(values.get(), 1, python::tuple_of(inputs).release()));
        python::Ref found = python::with_names(f, values, std::pair("grad_outputs", python::tuple_or_none(gradients)),
                                               std::pair("retain_graph", python::flag(retain_graph)),
                                               std::pair("create_graph", python::flag(create_graph)),
                                               std::pair("allow_unused", python::flag(allow_unused)));
        variable_list list;
        for (size_t i = 0; i < inputs.size(); ++i) {
            list.push_back(
                python::tensor_or_undefined(opforge_PyTuple_GetItem(found.get(), static_cast<OpforgePySize>(i))));
        }
        return list;
    });
}
}  // namespace autograd
}  // namespace opforge_facade
}  // namespace torch

namespace at {
template <int>
void Tensor::backward(const Tensor& gradient, std::optional<bool> retain_graph, bool create_graph,
                      std::optional<ArrayRef<Tensor>> inputs) const {
    const auto list = inputs ? inputs->vec() : std::vector<Tensor>();
    ::torch::autograd::backward({*this}, gradient.defined() ? std::vector<Tensor>{gradient} : std::vector<Tensor>(),
                                retain_graph, create_graph, list);
}
template <int>
Tensor Tensor::grad() const {
    namespace python = ::opforge_facade_python;
    return python::in_python("grad()", [this] {
        return python::tensor_or_undefined(python::attribute(python::from_tensor(*this).get(), "grad").get());
    });
}
template <int>
void Tensor::retain_grad() const {
    namespace python = ::opforge_facade_python;
    python::in_python("retain_grad()", [this] {
        python::called(python::attribute(python::from_tensor(*this).get(), "retain_grad").get());
    });
}
template <class F>
unsigned Tensor::register_hook(F&& hook) const {
    namespace python = ::opforge_facade_python;
    return python::in_python("register_hook()", [this, &hook] {
        const python::Ref function = pybind11::facade::as_function(std::forward<F>(hook));
        const python::Ref handle =
            python::called(python::attribute(python::from_tensor(*this).get(), "register_hook").get(), function);
        unsigned number = 0;
        python::Convert<unsigned>::load(python::attribute(handle.get(), "id").get(), true, number);
        return number;
    });
}
template <int>
std::string Tensor::name() const {
    namespace python = ::opforge_facade_python;
    return python::in_python("name()", [this] {
        std::string name;
        const python::Ref found = python::attribute(python::from_tensor(*this).get(), "name");
        python::Convert<std::string>::load(found.get(), true, name);
        return name;
    });
}
inline namespace opforge_facade {
// Seeds the generators of the CPU and of each device.
OPFORGE_IF_USED
void manual_seed(uint64_t seed) {
    namespace python = ::opforge_facade_python;
    python::in_python("manual_seed", [seed] {
        python::called(python::attribute(python::imported("torch").get(), "manual_seed").get(),
                       python::checked(opforge_PyLong_FromUnsignedLongLong(seed)));
    });
}
}  // namespace opforge_facade
}  // namespace at

namespace c10 {
inline namespace opforge_facade {
namespace facade {
// One of torch's guards until the end of its block: a context manager of torch._C, which `make` returns.
OPFORGE_IF_USED
class BasicGuard {
public:
    template <class F>
    BasicGuard(const char* what, F make) {
        namespace python = ::opforge_facade_python;
        python::in_python(what, [&] {
            guard_ = make(python::imported("torch._C"));
            python::called(python::attribute(guard_.get(), "__enter__").get());
        });
    }
    ~BasicGuard() {
        namespace python = ::opforge_facade_python;
        python::Gil gil;
        const python::Ref nothing = python::Ref::borrow(python::none());
        python::Ref::steal(opforge_PyObject_CallFunctionObjArgs(python::attribute(guard_.get(), "__exit__").get(),
                                                                nothing.get(), nothing.get(), nothing.get(),
                                                                static_cast<PyObject*>(nullptr)));
        python::Ref(std::move(guard_));
    }
    BasicGuard(const BasicGuard&) = delete;
    BasicGuard& operator=(const BasicGuard&) = delete;

private:
    ::opforge_facade_python::Ref guard_;
};
using Guard = BasicGuard<>;
// Returns a guard's object of torch._C by its name.
template <class... A>
::opforge_facade_python::Ref guard_object(const ::opforge_facade_python::Ref& torch, const char* name,
                                          const A&... with) {
    namespace python = ::opforge_facade_python;
    return python::called(python::attribute(torch.get(), name).get(), with...);
}
}  // namespace facade
OPFORGE_IF_USED
class BasicInferenceMode : facade::Guard {
public:
    explicit BasicInferenceMode(bool enabled = true)
        : facade::Guard("InferenceMode", [enabled](const ::opforge_facade_python::Ref& torch) {
              return facade::guard_object(torch, "_InferenceMode", ::opforge_facade_python::flag(enabled));
          }) {}
    static bool is_enabled() {
        return facade::torch_function<bool()>("InferenceMode", "_ZN3c1013InferenceMode10is_enabledEv", "libc10.so")();
    }
};
using InferenceMode = BasicInferenceMode<>;
}  // namespace opforge_facade
}  // namespace c10
