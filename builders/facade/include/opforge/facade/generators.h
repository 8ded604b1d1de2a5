// Generators of random numbers, by torch's Python objects: the stable ABI has none before torch 2.13.
#pragma once
#include "graph.h"

namespace c10 {
inline namespace opforge_facade {
struct Generator::State {
    std::function<::opforge_facade_python::Ref()> object;  // called with the GIL
    std::mutex lock;
    std::shared_ptr<void> of_device;  // what get() gives
};
namespace facade {
OPFORGE_IF_USED
Generator generator_of(std::function<::opforge_facade_python::Ref()> object) {
    auto state = std::make_shared<Generator::State>();
    state->object = std::move(object);
    return Generator(std::move(state));
}
// Returns what a method of a generator's Python object gives.
template <class R, class... A>
R of_generator(const Generator& generator, const char* name, A... arguments) {
    namespace python = ::opforge_facade_python;
    if (!generator.defined()) {
        fail("Generator with undefined implementation is not allowed");
    }
    return python::in_python(name, [&] {
        const python::Ref method = python::attribute(generator.state()->object().get(), name);
        R value{};
        python::Convert<R>::load(python::called(method.get(), python::Convert<A>::cast(arguments)...).get(), true,
                                 value);
        return value;
    });
}
}  // namespace facade
template <int>
Device Generator::device() const {
    namespace python = ::opforge_facade_python;
    return python::in_python("device", [this] {
        Device device(DeviceType::CPU);
        python::Convert<Device>::load(python::attribute(state_->object().get(), "device").get(), true, device);
        return device;
    });
}
template <int>
uint64_t Generator::current_seed() const {
    return facade::of_generator<uint64_t>(*this, "initial_seed");
}
template <int>
uint64_t Generator::seed() const {
    return facade::of_generator<uint64_t>(*this, "seed");
}
template <int>
uint64_t Generator::get_offset() const {
    return facade::of_generator<uint64_t>(*this, "get_offset");
}
template <int>
void Generator::set_offset(uint64_t offset) const {
    facade::of_generator<::pybind11::object>(*this, "set_offset", offset);
}
template <int>
void Generator::set_current_seed(uint64_t seed) const {
    facade::of_generator<::pybind11::object>(*this, "manual_seed", seed);
}
template <int>
std::mutex& Generator::mutex() const {
    return state_->lock;
}
template <class T>
T* Generator::get() const {
    std::lock_guard<std::mutex> hold(state_->lock);
    if (!state_->of_device) {
        state_->of_device = std::make_shared<T>(state_->object);
    }
    return static_cast<T*>(state_->of_device.get());
}
}  // namespace opforge_facade
}  // namespace c10

namespace at {
inline namespace opforge_facade {
template <class T>
T* check_generator(const std::optional<Generator>& generator) {
    TORCH_CHECK(generator.has_value(), "Expected Generator but received nullopt");
    TORCH_CHECK(generator->defined(), "Generator with undefined implementation is not allowed");
    TORCH_CHECK(T::device_type() == generator->device().type(), "Expected a '", T::device_type(),
                "' device type for generator but found '", generator->device().type(), "'");
    return generator->template get<T>();
}
template <class T>
T* get_generator_or_default(const std::optional<Generator>& generator, const Generator& otherwise) {
    return generator && generator->defined() ? check_generator<T>(generator) : check_generator<T>(otherwise);
}
}  // namespace opforge_facade
}  // namespace at

namespace opforge_facade_python {
template <>
struct Convert<c10::Generator> {
    static bool load(PyObject* o, bool, c10::Generator& value) {
        if (opforge_PyObject_IsInstance(o, attribute(torch().module, "Generator").get()) != 1) {
            return false;
        }
        std::shared_ptr<PyObject> kept(Ref::borrow(o).release(), [](PyObject* p) {
            Gil gil;
            opforge_Py_DecRef(p);
        });
        value = c10::facade::generator_of([kept] { return Ref::borrow(kept.get()); });
        return true;
    }
    static Ref cast(const c10::Generator& value) {
        return value.defined() ? value.state()->object() : Ref::borrow(none());
    }
    static std::string name(bool) { return "torch.Generator"; }
};
}  // namespace opforge_facade_python
