// Classes, an enumeration and exceptions of the same names in several libraries of one process: on the facade, and on
// pybind11 itself.
#ifdef OPFORGE_FACADE
#include <torch/extension.h>
#else
#include <pybind11/pybind11.h>

#include <new>
#include <stdexcept>
namespace py = pybind11;
#endif

namespace shared {
struct Box {
    explicit Box(int v) : value(v) {}
    int value;
};
enum class Side { Left, Right };
struct Broken : std::exception {
    const char* what() const noexcept override { return "broken"; }
};
// A symbol that libraries would share if it were seen from outside.
inline int& count() {
    static int n = 0;
    return n;
}
inline void fail(int kind) {
    switch (kind) {
        case 0:
            throw std::out_of_range("out of range");
        case 1:
            throw py::value_error("a value");
        case 2:
            throw py::key_error("a key");
        case 3:
            throw Broken();
        case 4:
            throw std::bad_alloc();
        default:
            throw 5;
    }
}
}  // namespace shared

#ifndef OPFORGE_FACADE
#define TORCH_EXTENSION_NAME beside_pybind
#endif
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    using shared::Box;
    using shared::Side;
    py::class_<Box>(m, "Box").def(py::init<int>(), py::arg("value")).def_readwrite("value", &Box::value);
    py::enum_<Side>(m, "Side").value("Left", Side::Left).value("Right", Side::Right);
    m.def("doubled", [](const Box& box) { return Box(2 * box.value); });
    m.def("is_left", [](Side side) { return side == Side::Left; });
    m.def("counted", [] { return ++shared::count(); });
    m.def("fail", &shared::fail, py::arg("kind"));
}
