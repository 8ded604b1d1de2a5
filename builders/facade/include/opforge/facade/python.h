// The part of Python's stable C API that the facade calls. The functions are declared here and not
// taken from Python.h, so that one library serves every Python: nothing of an object's layout, which
// differs between versions and in free-threaded builds, is compiled in. They are weak: a library loads
// in a process without Python as well.
#pragma once
#include <atomic>
#include <cstddef>
#include <string>
#include <utility>

#include "symbols.h"
#include "tensor.h"

#ifndef OPFORGE_PRECOMPILED  // a unit includes it after the precompiled header, which has not the module's name
#include "module_entry.h"
#endif

struct _object;
typedef struct _object PyObject;

struct _typeobject;

#define OPFORGE_PYTHON(result, name, ...) \
    extern "C" result opforge_##name(__VA_ARGS__) __asm__(#name) __attribute__((weak, visibility("default")));
#define OPFORGE_PYTHON_DATA(type, name) \
    extern "C" type opforge_##name __asm__(#name) __attribute__((weak, visibility("default")));
using OpforgePySize = std::ptrdiff_t;
using OpforgePyDestructor = void (*)(PyObject*);
OPFORGE_PYTHON(void, Py_IncRef, PyObject*)
OPFORGE_PYTHON(void, Py_DecRef, PyObject*)
OPFORGE_PYTHON(int, Py_IsInitialized, )
OPFORGE_PYTHON(PyObject*, PyObject_Type, PyObject*)
OPFORGE_PYTHON(int, PyType_IsSubtype, _typeobject*, _typeobject*)
OPFORGE_PYTHON(unsigned long, PyType_GetFlags, _typeobject*)
OPFORGE_PYTHON(void*, PyType_GetSlot, _typeobject*, int)
OPFORGE_PYTHON(int, PyObject_IsInstance, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyObject_GetAttrString, PyObject*, const char*)
OPFORGE_PYTHON(int, PyObject_SetAttrString, PyObject*, const char*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyObject_GetAttr, PyObject*, PyObject*)
OPFORGE_PYTHON(int, PyObject_SetAttr, PyObject*, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyObject_GetItem, PyObject*, PyObject*)
OPFORGE_PYTHON(int, PyObject_SetItem, PyObject*, PyObject*, PyObject*)
OPFORGE_PYTHON(OpforgePySize, PyObject_Size, PyObject*)
OPFORGE_PYTHON(OpforgePySize, PyObject_Hash, PyObject*)
OPFORGE_PYTHON(int, PyCallable_Check, PyObject*)
OPFORGE_PYTHON(PyObject*, PyObject_GenericGetAttr, PyObject*, PyObject*)
OPFORGE_PYTHON(int, PyObject_GenericSetAttr, PyObject*, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyWeakref_NewRef, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyUnicode_InternFromString, const char*)
OPFORGE_PYTHON(int, PyObject_IsTrue, PyObject*)
OPFORGE_PYTHON(int, PyObject_RichCompareBool, PyObject*, PyObject*, int)
OPFORGE_PYTHON(PyObject*, PyObject_CallFunctionObjArgs, PyObject*, ...)
OPFORGE_PYTHON(PyObject*, PyObject_Call, PyObject*, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyObject_Repr, PyObject*)
OPFORGE_PYTHON(PyObject*, PyObject_Str, PyObject*)
OPFORGE_PYTHON(PyObject*, PyObject_GetIter, PyObject*)
OPFORGE_PYTHON(PyObject*, PyIter_Next, PyObject*)
OPFORGE_PYTHON(PyObject*, PyImport_ImportModule, const char*)
OPFORGE_PYTHON(PyObject*, PyBool_FromLong, long)
OPFORGE_PYTHON(PyObject*, PyLong_FromLongLong, long long)
OPFORGE_PYTHON(PyObject*, PyLong_FromUnsignedLongLong, unsigned long long)
OPFORGE_PYTHON(long long, PyLong_AsLongLong, PyObject*)
OPFORGE_PYTHON(unsigned long long, PyLong_AsUnsignedLongLong, PyObject*)
OPFORGE_PYTHON(PyObject*, PyLong_FromVoidPtr, void*)
OPFORGE_PYTHON(void*, PyLong_AsVoidPtr, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_Index, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_Long, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_Float, PyObject*)
OPFORGE_PYTHON(int, PyNumber_Check, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_Add, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_InPlaceAdd, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_Subtract, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_InPlaceSubtract, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_Multiply, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_InPlaceMultiply, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_TrueDivide, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_InPlaceTrueDivide, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_And, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_InPlaceAnd, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_Or, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_InPlaceOr, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_Xor, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_InPlaceXor, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_Lshift, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_InPlaceLshift, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_Rshift, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_InPlaceRshift, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_Negative, PyObject*)
OPFORGE_PYTHON(PyObject*, PyNumber_Invert, PyObject*)
OPFORGE_PYTHON(int, PyIndex_Check, PyObject*)
OPFORGE_PYTHON(PyObject*, PyFloat_FromDouble, double)
OPFORGE_PYTHON(double, PyFloat_AsDouble, PyObject*)
OPFORGE_PYTHON(PyObject*, PyComplex_FromDoubles, double, double)
OPFORGE_PYTHON(double, PyComplex_RealAsDouble, PyObject*)
OPFORGE_PYTHON(double, PyComplex_ImagAsDouble, PyObject*)
OPFORGE_PYTHON(PyObject*, PyUnicode_FromStringAndSize, const char*, OpforgePySize)
OPFORGE_PYTHON(PyObject*, PyUnicode_DecodeUTF8, const char*, OpforgePySize, const char*)
OPFORGE_PYTHON(PyObject*, PyUnicode_DecodeLatin1, const char*, OpforgePySize, const char*)
OPFORGE_PYTHON(const char*, PyUnicode_AsUTF8AndSize, PyObject*, OpforgePySize*)
OPFORGE_PYTHON(PyObject*, PyBytes_FromStringAndSize, const char*, OpforgePySize)
OPFORGE_PYTHON(int, PyBytes_AsStringAndSize, PyObject*, char**, OpforgePySize*)
OPFORGE_PYTHON(char*, PyByteArray_AsString, PyObject*)
OPFORGE_PYTHON(OpforgePySize, PyByteArray_Size, PyObject*)
OPFORGE_PYTHON(int, PySequence_Check, PyObject*)
OPFORGE_PYTHON(OpforgePySize, PySequence_Size, PyObject*)
OPFORGE_PYTHON(PyObject*, PySequence_GetItem, PyObject*, OpforgePySize)
OPFORGE_PYTHON(PyObject*, PySequence_List, PyObject*)
OPFORGE_PYTHON(PyObject*, PySequence_Tuple, PyObject*)
OPFORGE_PYTHON(PyObject*, PyTuple_New, OpforgePySize)
OPFORGE_PYTHON(int, PyTuple_SetItem, PyObject*, OpforgePySize, PyObject*)
OPFORGE_PYTHON(PyObject*, PyTuple_GetItem, PyObject*, OpforgePySize)
OPFORGE_PYTHON(OpforgePySize, PyTuple_Size, PyObject*)
OPFORGE_PYTHON(PyObject*, PyList_New, OpforgePySize)
OPFORGE_PYTHON(int, PyList_SetItem, PyObject*, OpforgePySize, PyObject*)
OPFORGE_PYTHON(int, PyList_Append, PyObject*, PyObject*)
OPFORGE_PYTHON(int, PyList_Insert, PyObject*, OpforgePySize, PyObject*)
OPFORGE_PYTHON(PyObject*, PySet_New, PyObject*)
OPFORGE_PYTHON(int, PySet_Add, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyDict_New, )
OPFORGE_PYTHON(int, PyDict_SetItem, PyObject*, PyObject*, PyObject*)
OPFORGE_PYTHON(int, PyDict_SetItemString, PyObject*, const char*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyDict_GetItemWithError, PyObject*, PyObject*)
OPFORGE_PYTHON(int, PyDict_Next, PyObject*, OpforgePySize*, PyObject**, PyObject**)
OPFORGE_PYTHON(OpforgePySize, PyDict_Size, PyObject*)
OPFORGE_PYTHON(PyObject*, PyMapping_Items, PyObject*)
OPFORGE_PYTHON(PyObject*, PyCapsule_New, void*, const char*, void (*)(PyObject*))
OPFORGE_PYTHON(void*, PyCapsule_GetPointer, PyObject*, const char*)
OPFORGE_PYTHON(OpforgePyDestructor, PyCapsule_GetDestructor, PyObject*)
OPFORGE_PYTHON(PyObject*, PyErr_Occurred, )
OPFORGE_PYTHON(void, PyErr_Clear, )
OPFORGE_PYTHON(void, PyErr_SetString, PyObject*, const char*)
OPFORGE_PYTHON(void, PyErr_SetObject, PyObject*, PyObject*)
OPFORGE_PYTHON(PyObject*, PyErr_NewException, const char*, PyObject*, PyObject*)
OPFORGE_PYTHON(void, PyErr_Fetch, PyObject**, PyObject**, PyObject**)
OPFORGE_PYTHON(void, PyErr_Restore, PyObject*, PyObject*, PyObject*)
OPFORGE_PYTHON(int, PyErr_GivenExceptionMatches, PyObject*, PyObject*)
OPFORGE_PYTHON(void, PyErr_NormalizeException, PyObject**, PyObject**, PyObject**)
OPFORGE_PYTHON(PyObject*, PyModule_Create2, void*, int)
OPFORGE_PYTHON(PyObject*, PyModule_New, const char*)
OPFORGE_PYTHON(PyObject*, PyImport_AddModule, const char*)
OPFORGE_PYTHON(PyObject*, PyCMethod_New, void*, PyObject*, PyObject*, _typeobject*)
OPFORGE_PYTHON(int, PyGILState_Ensure, )
OPFORGE_PYTHON(void, PyGILState_Release, int)
OPFORGE_PYTHON(int, PyGILState_Check, )
OPFORGE_PYTHON(void*, PyEval_SaveThread, )
OPFORGE_PYTHON(void, PyEval_RestoreThread, void*)
OPFORGE_PYTHON(PyObject*, PyEval_GetFrame, )
OPFORGE_PYTHON(const char*, Py_GetVersion, )
OPFORGE_PYTHON_DATA(struct _object, _Py_NoneStruct)
OPFORGE_PYTHON_DATA(struct _typeobject, PyType_Type)
OPFORGE_PYTHON_DATA(struct _typeobject, PyFloat_Type)
OPFORGE_PYTHON_DATA(struct _typeobject, PyComplex_Type)
OPFORGE_PYTHON_DATA(struct _typeobject, PyByteArray_Type)
OPFORGE_PYTHON_DATA(struct _typeobject, PyCapsule_Type)
OPFORGE_PYTHON_DATA(struct _typeobject, PySet_Type)
OPFORGE_PYTHON_DATA(struct _typeobject, PyFrozenSet_Type)
OPFORGE_PYTHON_DATA(PyObject*, PyExc_RuntimeError)
OPFORGE_PYTHON_DATA(PyObject*, PyExc_TypeError)
OPFORGE_PYTHON_DATA(PyObject*, PyExc_ValueError)
OPFORGE_PYTHON_DATA(PyObject*, PyExc_IndexError)
OPFORGE_PYTHON_DATA(PyObject*, PyExc_KeyError)
OPFORGE_PYTHON_DATA(PyObject*, PyExc_AttributeError)
OPFORGE_PYTHON_DATA(PyObject*, PyExc_ImportError)
OPFORGE_PYTHON_DATA(PyObject*, PyExc_BufferError)
OPFORGE_PYTHON_DATA(PyObject*, PyExc_MemoryError)
OPFORGE_PYTHON_DATA(PyObject*, PyExc_OverflowError)
OPFORGE_PYTHON_DATA(PyObject*, PyExc_StopIteration)
OPFORGE_PYTHON_DATA(PyObject*, PyExc_NotImplementedError)

// Sources name these without including Python.h, which pybind11 does for them.
extern "C" {
__attribute__((weak, visibility("default"))) PyObject* PyCapsule_New(void*, const char*, void (*)(PyObject*));
__attribute__((weak, visibility("default"))) void* PyCapsule_GetPointer(PyObject*, const char*);
__attribute__((weak, visibility("default"))) void PyErr_SetString(PyObject*, const char*);
__attribute__((weak, visibility("default"))) PyObject* PyErr_Occurred();
__attribute__((weak, visibility("default"))) int PyErr_WarnEx(PyObject*, const char*, OpforgePySize);
__attribute__((weak, visibility("default"))) void PyErr_Clear();
__attribute__((weak, visibility("default"))) int PyGILState_Check();
}
#ifndef Py_BEGIN_ALLOW_THREADS
#define Py_BEGIN_ALLOW_THREADS \
    {                          \
        void* const opforge_thread = opforge_PyEval_SaveThread();
#define Py_END_ALLOW_THREADS                      \
    opforge_PyEval_RestoreThread(opforge_thread); \
    }
#endif
#define OPFORGE_EXCEPTION_OF_PYTHON(name) \
    extern "C" __attribute__((weak, visibility("default"))) PyObject* PyExc_##name;
OPFORGE_EXCEPTION_OF_PYTHON(BaseException)
OPFORGE_EXCEPTION_OF_PYTHON(Exception)
OPFORGE_EXCEPTION_OF_PYTHON(ArithmeticError)
OPFORGE_EXCEPTION_OF_PYTHON(AssertionError)
OPFORGE_EXCEPTION_OF_PYTHON(AttributeError)
OPFORGE_EXCEPTION_OF_PYTHON(BlockingIOError)
OPFORGE_EXCEPTION_OF_PYTHON(BrokenPipeError)
OPFORGE_EXCEPTION_OF_PYTHON(BufferError)
OPFORGE_EXCEPTION_OF_PYTHON(ChildProcessError)
OPFORGE_EXCEPTION_OF_PYTHON(ConnectionAbortedError)
OPFORGE_EXCEPTION_OF_PYTHON(ConnectionError)
OPFORGE_EXCEPTION_OF_PYTHON(ConnectionRefusedError)
OPFORGE_EXCEPTION_OF_PYTHON(ConnectionResetError)
OPFORGE_EXCEPTION_OF_PYTHON(EOFError)
OPFORGE_EXCEPTION_OF_PYTHON(FileExistsError)
OPFORGE_EXCEPTION_OF_PYTHON(FileNotFoundError)
OPFORGE_EXCEPTION_OF_PYTHON(FloatingPointError)
OPFORGE_EXCEPTION_OF_PYTHON(GeneratorExit)
OPFORGE_EXCEPTION_OF_PYTHON(IOError)
OPFORGE_EXCEPTION_OF_PYTHON(ImportError)
OPFORGE_EXCEPTION_OF_PYTHON(IndentationError)
OPFORGE_EXCEPTION_OF_PYTHON(IndexError)
OPFORGE_EXCEPTION_OF_PYTHON(InterruptedError)
OPFORGE_EXCEPTION_OF_PYTHON(IsADirectoryError)
OPFORGE_EXCEPTION_OF_PYTHON(KeyError)
OPFORGE_EXCEPTION_OF_PYTHON(KeyboardInterrupt)
OPFORGE_EXCEPTION_OF_PYTHON(LookupError)
OPFORGE_EXCEPTION_OF_PYTHON(MemoryError)
OPFORGE_EXCEPTION_OF_PYTHON(ModuleNotFoundError)
OPFORGE_EXCEPTION_OF_PYTHON(NameError)
OPFORGE_EXCEPTION_OF_PYTHON(NotADirectoryError)
OPFORGE_EXCEPTION_OF_PYTHON(NotImplementedError)
OPFORGE_EXCEPTION_OF_PYTHON(OSError)
OPFORGE_EXCEPTION_OF_PYTHON(OverflowError)
OPFORGE_EXCEPTION_OF_PYTHON(PermissionError)
OPFORGE_EXCEPTION_OF_PYTHON(ProcessLookupError)
OPFORGE_EXCEPTION_OF_PYTHON(RecursionError)
OPFORGE_EXCEPTION_OF_PYTHON(ReferenceError)
OPFORGE_EXCEPTION_OF_PYTHON(RuntimeError)
OPFORGE_EXCEPTION_OF_PYTHON(StopAsyncIteration)
OPFORGE_EXCEPTION_OF_PYTHON(StopIteration)
OPFORGE_EXCEPTION_OF_PYTHON(SyntaxError)
OPFORGE_EXCEPTION_OF_PYTHON(SystemError)
OPFORGE_EXCEPTION_OF_PYTHON(SystemExit)
OPFORGE_EXCEPTION_OF_PYTHON(TimeoutError)
OPFORGE_EXCEPTION_OF_PYTHON(TypeError)
OPFORGE_EXCEPTION_OF_PYTHON(UnboundLocalError)
OPFORGE_EXCEPTION_OF_PYTHON(UnicodeDecodeError)
OPFORGE_EXCEPTION_OF_PYTHON(UnicodeEncodeError)
OPFORGE_EXCEPTION_OF_PYTHON(UnicodeError)
OPFORGE_EXCEPTION_OF_PYTHON(ValueError)
OPFORGE_EXCEPTION_OF_PYTHON(ZeroDivisionError)
OPFORGE_EXCEPTION_OF_PYTHON(BytesWarning)
OPFORGE_EXCEPTION_OF_PYTHON(DeprecationWarning)
OPFORGE_EXCEPTION_OF_PYTHON(FutureWarning)
OPFORGE_EXCEPTION_OF_PYTHON(ImportWarning)
OPFORGE_EXCEPTION_OF_PYTHON(PendingDeprecationWarning)
OPFORGE_EXCEPTION_OF_PYTHON(ResourceWarning)
OPFORGE_EXCEPTION_OF_PYTHON(RuntimeWarning)
OPFORGE_EXCEPTION_OF_PYTHON(SyntaxWarning)
OPFORGE_EXCEPTION_OF_PYTHON(UnicodeWarning)
OPFORGE_EXCEPTION_OF_PYTHON(UserWarning)
OPFORGE_EXCEPTION_OF_PYTHON(Warning)
#undef OPFORGE_EXCEPTION_OF_PYTHON

// torch 2.14's conversions of tensors. Weak: an older torch has two functions of its Python module for them.
extern "C" __attribute__((weak, visibility("default"))) AOTITorchError
torch_tensor_from_pyobject(void* object, AtenTensorHandle* made);
extern "C" __attribute__((weak, visibility("default"))) AOTITorchError torch_tensor_to_pyobject(AtenTensorHandle handle,
                                                                                                void* type,
                                                                                                void** made);

namespace pybind11 {
inline namespace opforge_facade {
class object;
}
}  // namespace pybind11

namespace opforge_facade_python {

inline PyObject* none() { return &opforge__Py_NoneStruct; }

// A reference that is owned.
class Ref {
public:
    Ref() = default;
    static Ref steal(PyObject* p) {
        Ref r;
        r.object_ = p;
        return r;
    }
    static Ref borrow(PyObject* p) {
        if (p) {
            opforge_Py_IncRef(p);
        }
        return steal(p);
    }
    Ref(const Ref& o) : Ref(borrow(o.object_)) {}
    Ref(Ref&& o) noexcept : object_(std::exchange(o.object_, nullptr)) {}
    Ref& operator=(Ref o) noexcept {
        std::swap(object_, o.object_);
        return *this;
    }
    ~Ref() {
        if (object_) {
            opforge_Py_DecRef(object_);
        }
    }
    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

private:
    PyObject* object_ = nullptr;
};

// A Python exception on its way through C++.
class Raised : public std::exception {
public:
    // Takes the exception that is set in this thread.
    OPFORGE_COLD Raised() {
        PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
        opforge_PyErr_Fetch(&type, &value, &trace);
        opforge_PyErr_NormalizeException(&type, &value, &trace);
        state_ = new State{type, value, trace};
        Ref shown = Ref::steal(value ? opforge_PyObject_Str(value) : nullptr);
        Ref name = Ref::steal(type ? opforge_PyObject_GetAttrString(type, "__name__") : nullptr);
        text_ = c10::facade::joined({text(name), ": ", text(shown)});
    }
    Raised(const Raised& other) : std::exception(other), state_(other.state_), text_(other.text_) {
        state_->owners.fetch_add(1);
    }
    Raised& operator=(const Raised& other) {
        Raised copy(other);
        std::swap(state_, copy.state_);
        text_ = other.text_;
        return *this;
    }
    ~Raised() override {
        if (state_->owners.fetch_sub(1) == 1) {
            delete state_;
        }
    }
    const char* what() const noexcept override { return text_.c_str(); }
    OPFORGE_IF_USED
    pybind11::object type() const;
    OPFORGE_IF_USED
    pybind11::object value() const;
    OPFORGE_IF_USED
    pybind11::object trace() const;
    bool matches(PyObject* type) const { return opforge_PyErr_GivenExceptionMatches(state_->type, type) != 0; }
    template <class T>
    bool matches(const T& type) const {
        return opforge_PyErr_GivenExceptionMatches(state_->type, type.ptr()) != 0;
    }
    PyObject* exception() const { return state_->value; }
    PyObject* traceback() const { return state_->trace; }
    // Sets it again in this thread.
    void restore() const {
        opforge_Py_IncRef(state_->type);
        opforge_Py_IncRef(state_->value);
        opforge_Py_IncRef(state_->trace);
        opforge_PyErr_Restore(state_->type, state_->value, state_->trace);
    }

private:
    // Counted here: the code of a std::shared_ptr would be in every library.
    struct State {
        State(PyObject* type, PyObject* value, PyObject* trace) : type(type), value(value), trace(trace) {}
        PyObject *type, *value, *trace;
        std::atomic<long> owners{1};
        State(const State&) = delete;
        State& operator=(const State&) = delete;
        ~State() {
            if (!opforge_Py_IsInitialized()) {  // what a thread has kept ends with it, which can be after Python
                return;
            }
            int gil = opforge_PyGILState_Ensure();
            opforge_Py_DecRef(type);
            opforge_Py_DecRef(value);
            opforge_Py_DecRef(trace);
            opforge_PyGILState_Release(gil);
        }
    };
    static std::string text(const Ref& string) {
        OpforgePySize n = 0;
        const char* p = string ? opforge_PyUnicode_AsUTF8AndSize(string.get(), &n) : nullptr;
        opforge_PyErr_Clear();
        return p ? std::string(p, static_cast<size_t>(n)) : "an exception";
    }
    State* state_;
    std::string text_;
};
inline Ref checked(PyObject* owned) {
    if (!owned) {
        throw Raised();
    }
    return Ref::steal(owned);
}
inline void checked(int code) {
    if (code < 0) {
        throw Raised();
    }
}
inline Ref attribute(PyObject* o, const char* name) { return checked(opforge_PyObject_GetAttrString(o, name)); }
// An object's attribute, or an empty reference where this torch has none of that name.
inline Ref attribute_or_none(PyObject* o, const char* name) {
    Ref found = Ref::steal(opforge_PyObject_GetAttrString(o, name));
    opforge_PyErr_Clear();
    return found;
}
inline Ref imported(const char* name) { return checked(opforge_PyImport_ImportModule(name)); }
// The name of an attribute, as an object that is made once: finding an attribute by it costs a third.
class Name {
public:
    explicit Name(const char* text) : object_(checked(opforge_PyUnicode_InternFromString(text)).release()) {}
    PyObject* get() const { return object_; }

private:
    PyObject* object_;
};
inline Ref attribute(PyObject* o, const Name& name) { return checked(opforge_PyObject_GetAttr(o, name.get())); }
inline bool is_true(const Ref& object) {
    const int truth = opforge_PyObject_IsTrue(object.get());
    checked(truth);
    return truth != 0;
}
template <class... A>
Ref called(PyObject* f, const A&... arguments) {
    return checked(opforge_PyObject_CallFunctionObjArgs(f, arguments.get()..., static_cast<PyObject*>(nullptr)));
}

class Gil {
public:
    Gil() : state_(opforge_PyGILState_Ensure()) {}
    ~Gil() { opforge_PyGILState_Release(state_); }
    Gil(const Gil&) = delete;
    Gil& operator=(const Gil&) = delete;

private:
    int state_;
};

// How far this library is loaded.
struct Loading {
    std::optional<std::string> error;  // of the first registration that failed: those after it are left out
    bool has_reached_module = false;
    int module = 0;                         // how often the module's body has begun
    void (*forget_classes)(int) = nullptr;  // of a body that threw; null as long as there is no class
};
inline Loading& loading() {
    static Loading state;
    return state;
}
// Runs a registration. In a static constructor an exception would end the process: the dynamic loader has no place for
// one. Python finds the error that is set here when the loader returns to it, and each import of the module finds its
// text.
template <class F>
OPFORGE_COLD void register_while_loading(F registration) {
    if (loading().error) {
        return;
    }
    if (loading().has_reached_module || !opforge_Py_IsInitialized || !opforge_Py_IsInitialized()) {
        return registration();
    }
    try {
        return registration();
    } catch (const std::exception& e) {
        loading().error = e.what();
    } catch (...) {
        loading().error = "a registration threw an exception that is not a std::exception";
    }
    Gil gil;
    opforge_PyErr_SetString(opforge_PyExc_ImportError, loading().error->c_str());
}

inline bool is(PyObject* o, struct _typeobject* type) {
    Ref t = Ref::steal(opforge_PyObject_Type(o));
    return opforge_PyType_IsSubtype(reinterpret_cast<_typeobject*>(t.get()), type);
}
// The flags by which Python itself tells its own types and their subclasses.
enum Flag : unsigned long {
    LongFlag = 1UL << 24,
    ListFlag = 1UL << 25,
    TupleFlag = 1UL << 26,
    BytesFlag = 1UL << 27,
    UnicodeFlag = 1UL << 28,
    DictFlag = 1UL << 29,
};
inline bool is(PyObject* o, Flag flag) {
    Ref t = Ref::steal(opforge_PyObject_Type(o));
    return opforge_PyType_GetFlags(reinterpret_cast<_typeobject*>(t.get())) & flag;
}
inline bool is_none(PyObject* o) { return o == none(); }
inline std::string type_name(PyObject* o) {
    Ref t = Ref::steal(opforge_PyObject_Type(o));
    Ref name = Ref::steal(opforge_PyObject_GetAttrString(t.get(), "__name__"));
    OpforgePySize n = 0;
    const char* p = name ? opforge_PyUnicode_AsUTF8AndSize(name.get(), &n) : nullptr;
    opforge_PyErr_Clear();
    return p ? std::string(p, static_cast<size_t>(n)) : std::string();
}
// Returns an object's repr, for texts of errors and signatures: one that raises must not hide the text.
OPFORGE_COLD inline std::string shown(PyObject* o) {
    Ref text = Ref::steal(opforge_PyObject_Repr(o));
    OpforgePySize n = 0;
    const char* p = text ? opforge_PyUnicode_AsUTF8AndSize(text.get(), &n) : nullptr;
    if (!p) {
        opforge_PyErr_Clear();
        return "<repr raised Error>";
    }
    return std::string(p, static_cast<size_t>(n));
}

// What the facade calls of torch's Python module: types, and for a torch before 2.14 the function by which
// AOTInductor's wrappers turn a tensor into the stable ABI's handle, and the one by which torch makes an object of a
// tensor. That takes the tensor by reference, and a handle is its address.
struct Torch {
    PyObject* take_handle;
    PyObject* (*wrap)(AtenTensorHandle);
    PyObject* module;
    struct _typeobject* tensor;
    PyObject* dtype;
    PyObject* device;
};
inline const Torch& torch() {
    // not a static's initializer: its lock would be held while the GIL is given up in the import. Atomic, for a Python
    // without one.
    static std::atomic<Torch*> loaded{nullptr};
    if (__builtin_expect(!loaded, 0)) {
        Ref module = imported("torch");
        auto* t = new Torch();
        if (!torch_tensor_from_pyobject || !torch_tensor_to_pyobject) {
            Ref functions = attribute(imported("torch._C").get(), "_aoti");
            t->take_handle = attribute(functions.get(), "unsafe_alloc_void_ptr_from_tensor").release();
            t->wrap = c10::facade::torch_function<PyObject*(AtenTensorHandle)>(
                "a tensor", "_Z16THPVariable_WrapRKN2at10TensorBaseE", "libtorch_python.so");
        }
        t->tensor = reinterpret_cast<_typeobject*>(attribute(module.get(), "Tensor").release());
        t->dtype = attribute(module.get(), "dtype").release();
        t->device = attribute(module.get(), "device").release();
        t->module = module.release();
        loaded = t;
    }
    return *loaded;
}
inline bool is_tensor(PyObject* o) { return is(o, torch().tensor); }
// Throws the Python exception that a C function of torch's left, or else its text.
[[noreturn]] inline void conversion_failed() {
    if (opforge_PyErr_Occurred()) {
        throw Raised();
    }
    c10::facade::failed("a tensor");
}
inline at::Tensor to_tensor(PyObject* o) {
    const Torch& functions = torch();
    if (!functions.take_handle) {
        AtenTensorHandle made;
        if (torch_tensor_from_pyobject(o, &made) != AOTI_TORCH_SUCCESS) {
            conversion_failed();
        }
        return at::Tensor::adopt(made);
    }
    Ref capsule =
        checked(opforge_PyObject_CallFunctionObjArgs(functions.take_handle, o, static_cast<PyObject*>(nullptr)));
    void* handle = opforge_PyCapsule_GetPointer(capsule.get(), nullptr);
    if (!handle) {
        throw Raised();
    }
    return at::Tensor::adopt(static_cast<AtenTensorHandle>(handle));
}
inline Ref from_tensor(const at::Tensor& t) {
    if (!t.defined()) {
        return Ref::borrow(none());
    }
    const Torch& functions = torch();
    if (functions.wrap) {
        return checked(functions.wrap(t.handle()));
    }
    void* made = nullptr;
    if (torch_tensor_to_pyobject(t.handle(), nullptr, &made) != AOTI_TORCH_SUCCESS) {
        conversion_failed();
    }
    return Ref::steal(static_cast<PyObject*>(made));
}

// Sets the Python exception that torch and pybind11 make of a C++ exception. Called in a handler.
inline void raise(PyObject* type, const char* text) { opforge_PyErr_SetString(type, text); }
OPFORGE_COLD inline void raise_torch_error(const char* path, const char* name, const char* text) {
    Ref module = Ref::steal(opforge_PyImport_ImportModule(path));
    Ref type = Ref::steal(module ? opforge_PyObject_GetAttrString(module.get(), name) : nullptr);
    opforge_PyErr_Clear();
    raise(type ? type.get() : opforge_PyExc_RuntimeError, text);
}
}  // namespace opforge_facade_python
