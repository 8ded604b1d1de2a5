// Python's types that few modules use, and C++ functions as objects of their own: py::cpp_function.
#pragma once
#include "classes.h"
#include "module.h"

OPFORGE_PYTHON(PyObject*, PySlice_New, PyObject*, PyObject*, PyObject*)
OPFORGE_PYTHON(int, PySlice_GetIndicesEx, PyObject*, OpforgePySize, OpforgePySize*, OpforgePySize*, OpforgePySize*,
               OpforgePySize*)
OPFORGE_PYTHON(PyObject*, PyByteArray_FromStringAndSize, const char*, OpforgePySize)
OPFORGE_PYTHON(PyObject*, PyByteArray_FromObject, PyObject*)
OPFORGE_PYTHON(PyObject*, PyMemoryView_FromMemory, char*, OpforgePySize, int)
OPFORGE_PYTHON(PyObject*, PyMemoryView_FromObject, PyObject*)
OPFORGE_PYTHON(PyObject*, PyFrozenSet_New, PyObject*)
OPFORGE_PYTHON(PyObject*, PyEval_GetGlobals, )
OPFORGE_PYTHON_DATA(struct _typeobject, PySlice_Type)
OPFORGE_PYTHON_DATA(struct _typeobject, PyMemoryView_Type)

namespace pybind11 {
inline namespace opforge_facade {
namespace facade {
struct SliceType {
    static constexpr const char* name = "slice";
    static bool is_of(PyObject* o) { return is(o, &opforge_PySlice_Type); }
    static PyObject* converted(PyObject* o) { return refuse(o, "slice"); }
};
struct ByteArrayType {
    static constexpr const char* name = "bytearray";
    static bool is_of(PyObject* o) { return is(o, &opforge_PyByteArray_Type); }
    static PyObject* converted(PyObject* o) { return opforge_PyByteArray_FromObject(o); }
};
struct MemoryViewType {
    static constexpr const char* name = "memoryview";
    static bool is_of(PyObject* o) { return is(o, &opforge_PyMemoryView_Type); }
    static PyObject* converted(PyObject* o) { return opforge_PyMemoryView_FromObject(o); }
};
struct FrozenSetType {
    static constexpr const char* name = "frozenset";
    static bool is_of(PyObject* o) { return is(o, &opforge_PyFrozenSet_Type); }
    static PyObject* converted(PyObject* o) { return opforge_PyFrozenSet_New(o); }
};
struct WeakReferenceType {
    static constexpr const char* name = "weakref.ReferenceType";
    static bool is_of(PyObject* o) {
        const int found = opforge_PyObject_IsInstance(o, attribute(imported("weakref").get(), "ReferenceType").get());
        checked(found);
        return found == 1;
    }
    static PyObject* converted(PyObject* o) { return opforge_PyWeakref_NewRef(o, nullptr); }
};

// A function that belongs to its Python object, and is freed with it.
struct OwnedFunction {
    Function function;
    void (*free)(void*) = nullptr;
    ~OwnedFunction() {
        Overload* overload = function.overloads;
        free(overload->function);
        while (Keep* keep = overload->keeps) {
            overload->keeps = keep->next;
            delete keep;
        }
        delete[] overload->arguments;
        delete overload;
    }
};
OPFORGE_IF_USED
PyObject* call_owned(PyObject* self, PyObject* const* values, OpforgePySize n, PyObject* names) {
    auto& owned = *static_cast<OwnedFunction*>(opforge_PyCapsule_GetPointer(self, nullptr));
    try {
        const size_t named = names ? static_cast<size_t>(opforge_PyTuple_Size(names)) : 0;
        return call_overloads(owned.function, {values, static_cast<size_t>(n), names, named}).release();
    } catch (...) {
        translate();
    }
    return nullptr;
}
OPFORGE_IF_USED
OPFORGE_COLD Ref owned_function(Overload* overload, void (*free)(void*)) {
    constexpr int fast_and_keywords = 0x82;
    auto owned = std::make_unique<OwnedFunction>();
    Function& f = owned->function;
    owned->free = free;
    f.add(overload);
    f.name = overload->name;
    f.doc = doc_of(f);
    f.definition = {f.name.c_str(), call_owned<>, fast_and_keywords, f.doc.c_str()};
    const bool is_method = overload->is_method;
    Ref capsule = checked(opforge_PyCapsule_New(owned.get(), nullptr, [](PyObject* o) {
        delete static_cast<OwnedFunction*>(opforge_PyCapsule_GetPointer(o, nullptr));
    }));
    owned.release();
    Ref made = checked(opforge_PyCMethod_New(&f.definition, capsule.get(), nullptr, nullptr));
    return is_method ? method_of(made) : made;
}
}  // namespace facade

struct name {
    explicit name(const char* text) : value(text) {}
    const char* value;
};
struct is_method {
    explicit is_method(const handle& type) : class_type(type) {}
    handle class_type;
};
struct scope {
    explicit scope(const handle& of) : value(of) {}
    handle value;
};
struct sibling {
    explicit sibling(const handle& of) : value(of) {}
    handle value;
};
namespace facade {
inline void extra(Overload& o, const ::pybind11::name& n) { o.name = n.value; }
inline void extra(Overload& o, const ::pybind11::is_method&) {
    o.is_method = true;
    if (o.arguments) {  // it has names
        o.state({"self", {}, true, false});
    }
}
inline void extra(Overload&, const ::pybind11::scope&) {}
}  // namespace facade

// A C++ function as an object of Python's. It is freed with that object.
class cpp_function : public function {
public:
    cpp_function() = default;
    cpp_function(std::nullptr_t) {}
    template <class F, class... X, class = std::enable_if_t<!std::is_base_of_v<handle, std::decay_t<F>>>>
    cpp_function(F&& f, const X&... extras) : function(made(on_its_object(std::forward<F>(f)), extras...)) {}

private:
    template <class F, class... X>
    static facade::Ref made(F f, const X&... extras) {
        using Caller = facade::Call<F, facade::signature_t<F>, typename facade::guard_of<X...>::type>;
        auto* overload = facade::overload_of("", facade::Kind::Function, std::move(f), extras...);
        return facade::owned_function<>(overload, [](void* caller) { delete static_cast<Caller*>(caller); });
    }
    template <class F>
    static std::decay_t<F> on_its_object(F&& f) {
        return std::forward<F>(f);
    }
    template <class C, class R, class... A>
    static auto on_its_object(R (C::*f)(A...)) {
        return facade::method_of<C>(f);
    }
    template <class C, class R, class... A>
    static auto on_its_object(R (C::*f)(A...) const) {
        return facade::method_of<C>(f);
    }
};

namespace facade {
template <class F>
Ref as_function(const F& f) {
    return cpp_function(f).ref();
}
}  // namespace facade

class slice : public facade::typed_object<facade::SliceType> {
public:
    using typed_object::typed_object;
    slice() : slice(std::optional<ssize_t>(), {}, {}) {}
    slice(const handle& first, const handle& last, const handle& step)
        : typed_object(facade::checked(opforge_PySlice_New(first.ptr(), last.ptr(), step.ptr()))) {}
    slice(std::optional<ssize_t> first, std::optional<ssize_t> last, std::optional<ssize_t> step)
        : slice(number(first), number(last), number(step)) {}
    slice(ssize_t first, ssize_t last, ssize_t step)
        : slice(std::optional<ssize_t>(first), std::optional<ssize_t>(last), std::optional<ssize_t>(step)) {}
    // False with Python's exception set, which py::error_already_set takes.
    bool compute(ssize_t length, ssize_t* first, ssize_t* last, ssize_t* step, ssize_t* count) const {
        return opforge_PySlice_GetIndicesEx(ptr(), length, first, last, step, count) == 0;
    }
    bool compute(size_t length, size_t* first, size_t* last, size_t* step, size_t* count) const {
        ssize_t found[4];
        if (!compute(static_cast<ssize_t>(length), &found[0], &found[1], &found[2], &found[3])) {
            return false;
        }
        *first = static_cast<size_t>(found[0]);
        *last = static_cast<size_t>(found[1]);
        *step = static_cast<size_t>(found[2]);
        *count = static_cast<size_t>(found[3]);
        return true;
    }

private:
    static object number(std::optional<ssize_t> value) { return value ? object(int_(*value)) : object(none()); }
};
class bytearray : public facade::typed_object<facade::ByteArrayType> {
public:
    using typed_object::typed_object;
    bytearray(const char* data, size_t n)
        : typed_object(facade::checked(opforge_PyByteArray_FromStringAndSize(data, static_cast<ssize_t>(n)))) {}
    bytearray() : bytearray("", 0) {}
    explicit bytearray(const std::string& text) : bytearray(text.data(), text.size()) {}
    size_t size() const { return static_cast<size_t>(opforge_PyByteArray_Size(ptr())); }
    explicit operator std::string() const { return {opforge_PyByteArray_AsString(ptr()), size()}; }
};
// A view of memory that the source keeps.
class memoryview : public facade::typed_object<facade::MemoryViewType> {
public:
    using typed_object::typed_object;
    static memoryview from_memory(void* memory, ssize_t bytes, bool is_readonly = false) {
        constexpr int read = 0x100, write = 0x200;  // PyBUF_READ and PyBUF_WRITE of the stable ABI
        return memoryview(facade::checked(opforge_PyMemoryView_FromMemory(static_cast<char*>(memory), bytes,  //
                                                                          is_readonly ? read : write)));
    }
    static memoryview from_memory(const void* memory, ssize_t bytes) {
        return from_memory(const_cast<void*>(memory), bytes, true);
    }
    static memoryview from_memory(std::string_view text) {
        return from_memory(text.data(), static_cast<ssize_t>(text.size()));
    }
};
class frozenset : public facade::typed_object<facade::FrozenSetType> {
public:
    using typed_object::typed_object;
    size_t size() const { return facade::size_of(ptr()); }
    bool empty() const { return size() == 0; }
};
class weakref : public facade::typed_object<facade::WeakReferenceType> {
public:
    using typed_object::typed_object;
    explicit weakref(const handle& of, const handle& callback = {})
        : typed_object(facade::checked(opforge_PyWeakref_NewRef(of.ptr(), callback.ptr()))) {}
};
class ellipsis : public object {
public:
    ellipsis() : object(facade::attribute(facade::imported("builtins").get(), "Ellipsis")) {}
};

// ---- code in Python
OPFORGE_IF_USED
dict globals() {
    PyObject* found = opforge_PyEval_GetGlobals();  // none where no code in Python runs
    return found ? dict(facade::Ref::borrow(found)) : dict(module_::import("__main__").attr("__dict__"));
}
enum eval_mode { eval_expr, eval_single_statement, eval_statements };
template <eval_mode mode = eval_expr>
object eval(const str& text, object global = globals(), object local = object()) {
    static_assert(mode != eval_single_statement, "the facade runs statements by py::exec");
    std::string code = text;
    if (!code.empty() && code[0] == '\n') {
        code = std::string(str(module_::import("textwrap").attr("dedent")(code)));
    }
    code = "# -*- coding: utf-8 -*-\n" + code;  // pybind11's: lines in errors count from it
    const object run = module_::import("builtins").attr(mode == eval_expr ? "eval" : "exec");
    return local ? run(code, global, local) : run(code, global);
}
OPFORGE_IF_USED
void exec(const str& text, object global = globals(), object local = object()) {
    eval<eval_statements>(text, std::move(global), std::move(local));
}
}  // namespace opforge_facade
}  // namespace pybind11
