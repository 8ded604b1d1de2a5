// torch::autograd::Function. The stable ABI has no way to make a node of autograd's graph, so the node
// is Python's: a subclass of torch.autograd.Function, whose forward and backward are C functions of this
// library. It is made at the first call, and has no name that another library could meet.
#pragma once
#include <mutex>

#include "checks.h"
#include "instances.h"
#include "parallel.h"

namespace c10 {
inline namespace opforge_facade {
// What AutogradContext::saved_data holds.
OPFORGE_IF_USED
class BasicIValue {
public:
    BasicIValue() = default;
    template <class T, class = std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>>
    BasicIValue(T v) : value_(static_cast<int64_t>(v)) {}
    template <class T, class = std::enable_if_t<std::is_same_v<T, bool>>, int = 0>
    BasicIValue(T v) : value_(bool{v}) {}
    BasicIValue(double v) : value_(v) {}
    BasicIValue(float v) : value_(static_cast<double>(v)) {}
    BasicIValue(const char* v) : value_(std::string(v)) {}
    BasicIValue(std::string v) : value_(std::move(v)) {}
    BasicIValue(at::Tensor v) : value_(std::move(v)) {}
    BasicIValue(IntArrayRef v) : value_(v.vec()) {}
    BasicIValue(SymInt v) : value_(static_cast<int64_t>(v)) {}
    BasicIValue(SymIntArrayRef v) : BasicIValue(asIntArrayRefSlow(v)) {}
    BasicIValue(std::vector<int64_t> v) : value_(std::move(v)) {}
    BasicIValue(std::vector<double> v) : value_(std::move(v)) {}
    BasicIValue(std::vector<at::Tensor> v) : value_(std::move(v)) {}
    BasicIValue(Scalar v) : value_(v) {}
    BasicIValue(ScalarType v) : value_(static_cast<int64_t>(v)) {}
    template <class T>
    BasicIValue(std::optional<T> v) {
        if (v) {
            *this = BasicIValue(std::move(*v));
        }
    }
    bool isNone() const { return value_.index() == 0; }
    bool isInt() const { return std::holds_alternative<int64_t>(value_); }
    bool isDouble() const { return std::holds_alternative<double>(value_); }
    bool isBool() const { return std::holds_alternative<bool>(value_); }
    bool isString() const { return std::holds_alternative<std::string>(value_); }
    bool isTensor() const { return std::holds_alternative<at::Tensor>(value_); }
    bool isIntList() const { return std::holds_alternative<std::vector<int64_t>>(value_); }
    int64_t toInt() const { return get<int64_t>("Int"); }
    SymInt toSymInt() const { return toInt(); }
    std::vector<SymInt> toSymIntVector() const {
        return fromIntArrayRefSlow(get<std::vector<int64_t>>("IntList")).vec();
    }
    double toDouble() const { return get<double>("Double"); }
    bool toBool() const { return get<bool>("Bool"); }
    const std::string& toStringRef() const { return get<std::string>("String"); }
    const at::Tensor& toTensor() const { return get<at::Tensor>("Tensor"); }
    std::vector<int64_t> toIntVector() const { return get<std::vector<int64_t>>("IntList"); }
    List<int64_t> toIntList() const { return List<int64_t>(get<std::vector<int64_t>>("IntList")); }
    std::vector<double> toDoubleVector() const { return get<std::vector<double>>("DoubleList"); }
    std::vector<at::Tensor> toTensorVector() const { return get<std::vector<at::Tensor>>("TensorList"); }
    List<at::Tensor> toTensorList() const { return List<at::Tensor>(get<std::vector<at::Tensor>>("TensorList")); }
    // A list's elements, each of which `get` returns.
    struct Element;
    std::vector<Element> toList() const;
    ScalarType toScalarType() const { return static_cast<ScalarType>(toInt()); }
    Scalar toScalar() const {
        return isInt()      ? Scalar(toInt())
               : isDouble() ? Scalar(toDouble())
               : isBool()   ? Scalar(toBool())
                            : get<Scalar>("Scalar");
    }
    template <class T>
    T to() const {
        if constexpr (std::is_same_v<T, bool>) {
            return toBool();
        } else if constexpr (std::is_integral_v<T>) {
            return static_cast<T>(toInt());
        } else if constexpr (std::is_floating_point_v<T>) {
            return static_cast<T>(toDouble());
        } else {
            return get<T>("value of that type");
        }
    }

private:
    template <class T>
    const T& get(const char* name) const {
        if (auto* v = std::get_if<T>(&value_)) {
            return *v;
        }
        facade::fail(facade::text("Expected ", name, " but the IValue holds something else"));
    }
    std::variant<std::monostate, int64_t, double, bool, std::string, at::Tensor, std::vector<int64_t>,
                 std::vector<double>, std::vector<at::Tensor>, Scalar>
        value_;
};
template <int N>
struct BasicIValue<N>::Element {
    BasicIValue value;
    BasicIValue get() const { return value; }
    operator BasicIValue() const { return value; }
};
template <int N>
std::vector<typename BasicIValue<N>::Element> BasicIValue<N>::toList() const {
    std::vector<Element> list;
    auto add = [&](const auto& elements) {
        for (const auto& element : elements) {
            list.push_back({BasicIValue(element)});
        }
    };
    if (isIntList()) {
        add(toIntVector());
    } else if (std::holds_alternative<std::vector<double>>(value_)) {
        add(toDoubleVector());
    } else {
        add(toTensorVector());
    }
    return list;
}
using IValue = BasicIValue<>;
}  // namespace opforge_facade
}  // namespace c10
namespace at {
inline namespace opforge_facade {
using c10::IValue;
}
}  // namespace at

namespace torch {
inline namespace opforge_facade {
using Variable = at::Tensor;
namespace autograd {
using Variable = at::Tensor;
using variable_list = std::vector<Variable>;
using tensor_list = variable_list;
using at::AutoGradMode;
using at::GradMode;

struct AutogradContext {
    AutogradContext() = default;
    AutogradContext(const AutogradContext&) = delete;
    AutogradContext& operator=(const AutogradContext&) = delete;

    void save_for_backward(variable_list list) { to_save_ = std::move(list); }
    OPFORGE_IF_USED
    variable_list get_saved_variables() const { return saved_; }
    OPFORGE_IF_USED
    void mark_dirty(const variable_list& list) { dirty_ = list; }
    OPFORGE_IF_USED
    void mark_non_differentiable(const variable_list& list) { non_differentiable_ = list; }
    void set_materialize_grads(bool value) { materialize_ = value; }
    OPFORGE_IF_USED
    bool needs_input_grad(size_t i) const {
        if (i >= needs_.size()) {
            c10::facade::fail<c10::IndexError>(
                c10::facade::text("needs_input_grad(", i, "): the function has ", needs_.size(), " inputs"));
        }
        return needs_[i];
    }
    std::unordered_map<std::string, at::IValue> saved_data;

    // For the facade alone.
    variable_list to_save_, saved_, dirty_, non_differentiable_;
    std::vector<bool> needs_;
    bool materialize_ = true;
};
OPFORGE_IF_USED
inline bool any_variable_requires_grad(const variable_list& list) {
    return std::any_of(list.begin(), list.end(), [](const Variable& v) { return v.defined() && v.requires_grad(); });
}
}  // namespace autograd
}  // namespace opforge_facade
}  // namespace torch

namespace opforge_facade_python {

// Runs a function at the end of a block.
template <class F>
struct Finally {
    F f;
    explicit Finally(F function) : f(std::move(function)) {}
    Finally(const Finally&) = delete;
    Finally& operator=(const Finally&) = delete;
    ~Finally() { f(); }
};
// One call of Function::apply.
struct AutogradCall {
    torch::autograd::AutogradContext context;
    std::function<std::vector<at::Tensor>(torch::autograd::AutogradContext&)> forward;
    std::vector<at::Tensor> (*backward)(torch::autograd::AutogradContext*, std::vector<at::Tensor>) = nullptr;
    // Of backward: threads that go through one graph share the context. It is taken without the GIL, as backward may
    // take that. A backward that goes through the graph itself has it already.
    std::recursive_mutex lock;
    std::vector<size_t> places;   // of each tensor among the function's inputs
    std::vector<bool> variables;  // which inputs may have a gradient, an undefined tensor included
    size_t inputs = 0;
    // what forward threw: on its way through Python it would lose its type
    std::exception_ptr thrown;
};
// What autograd's Python side is asked. What a later torch lacks makes no call wrong: it goes through Python.
struct Autograd {
    Name requires_grad{"requires_grad"}, level{"_current_level"}, needs_input_grad{"needs_input_grad"},
        call{"opforge_call"}, save_for_backward{"save_for_backward"}, saved_tensors{"saved_tensors"};
    Ref transforms = attribute_or_none(imported("torch._C").get(), "_are_functorch_transforms_active");
    Ref function_modes = attribute_or_none(imported("torch._C").get(), "_is_torch_function_mode_enabled");
    Ref forward_mode = imported("torch.autograd.forward_ad");
    Ref parameter = attribute(imported("torch.nn").get(), "Parameter");

    bool in_transform() const { return !transforms || is_true(called(transforms.get())); }
    // Outside of transforms: whether tensors can be asked without anybody seeing it, and the only derivatives are those
    // of backward.
    bool is_plain() const {
        if (!function_modes || is_true(called(function_modes.get()))) {
            return false;
        }
        Ref current = Ref::steal(opforge_PyObject_GetAttr(forward_mode.get(), level.get()));
        const bool is_off = current && opforge_PyLong_AsLongLong(current.get()) == -1;
        if (opforge_PyErr_Occurred()) {  // -1 is also what a failure gives
            opforge_PyErr_Clear();
            return false;
        }
        return is_off;
    }
    // Whether an object is a tensor whose attributes run no Python.
    bool is_plain(PyObject* o) const {
        Ref type = Ref::steal(opforge_PyObject_Type(o));
        return type.get() == reinterpret_cast<PyObject*>(torch().tensor) || type.get() == parameter.get();
    }
};
OPFORGE_IF_USED
inline const Autograd& autograd() {
    static std::atomic<Autograd*> loaded{nullptr};  // not a static's initializer, as in torch()
    if (__builtin_expect(!loaded, 0)) {
        auto made = std::make_unique<Autograd>();
        Autograd* none = nullptr;
        if (loaded.compare_exchange_strong(none, made.get())) {
            made.release();
        }
    }
    return *loaded;
}
struct MethodDefinition {  // PyMethodDef of the stable ABI
    const char* name;
    PyObject* (*call)(PyObject*, PyObject*);
    int flags;
    const char* doc;
};
constexpr const char* call_name = "opforge.autograd_call";
OPFORGE_IF_USED
inline AutogradCall& call_in(PyObject* capsule) {
    auto* shared = static_cast<std::shared_ptr<AutogradCall>*>(opforge_PyCapsule_GetPointer(capsule, call_name));
    if (!shared) {
        throw Raised();
    }
    return **shared;
}
OPFORGE_IF_USED
inline void free_call(PyObject* capsule) {
    delete static_cast<std::shared_ptr<AutogradCall>*>(opforge_PyCapsule_GetPointer(capsule, call_name));
}
OPFORGE_IF_USED
inline Ref tuple_of(const std::vector<at::Tensor>& list, size_t leading_none = 0) {
    Ref tuple = checked(opforge_PyTuple_New(static_cast<OpforgePySize>(list.size() + leading_none)));
    for (size_t i = 0; i < list.size() + leading_none; ++i) {
        Ref item = i < leading_none ? Ref::borrow(none()) : from_tensor(list[i - leading_none]);
        checked(opforge_PyTuple_SetItem(tuple.get(), static_cast<OpforgePySize>(i), item.release()));
    }
    return tuple;
}
OPFORGE_IF_USED
inline at::Tensor tensor_or_undefined(PyObject* o) { return is_none(o) ? at::Tensor() : to_tensor(o); }
OPFORGE_IF_USED
inline void call_method(const Ref& object, const char* name, const std::vector<at::Tensor>& list) {
    checked(opforge_PyObject_Call(attribute(object.get(), name).get(), tuple_of(list).get(), nullptr));
}
// forward(ctx, call, *tensors)
OPFORGE_IF_USED
inline PyObject* autograd_forward(PyObject*, PyObject* args) {
    AutogradCall* call = nullptr;
    try {
        Ref ctx = Ref::borrow(opforge_PyTuple_GetItem(args, 0));
        PyObject* capsule = opforge_PyTuple_GetItem(args, 1);
        call = &call_in(capsule);
        checked(opforge_PyObject_SetAttr(ctx.get(), autograd().call.get(), capsule));
        auto& context = call->context;
        context.needs_.assign(call->inputs, false);
        Ref needs = attribute(ctx.get(), autograd().needs_input_grad);
        for (size_t i = 0; i < call->places.size(); ++i) {
            Ref needed = checked(opforge_PySequence_GetItem(needs.get(), static_cast<OpforgePySize>(i + 1)));
            context.needs_[call->places[i]] = is_true(needed);
        }
        auto results = call->forward(context);
        call->forward = nullptr;  // it refers to arguments that end before the graph does
        if (!context.to_save_.empty()) {
            checked(opforge_PyObject_Call(attribute(ctx.get(), autograd().save_for_backward).get(),
                                          tuple_of(context.to_save_).get(), nullptr));
            context.to_save_.clear();
        }
        if (!context.dirty_.empty()) {
            call_method(ctx, "mark_dirty", context.dirty_);
        }
        if (!context.non_differentiable_.empty()) {
            call_method(ctx, "mark_non_differentiable", context.non_differentiable_);
        }
        if (!context.materialize_) {
            called(attribute(ctx.get(), "set_materialize_grads").get(), Ref::steal(opforge_PyBool_FromLong(0)));
        }
        context.dirty_.clear();
        context.non_differentiable_.clear();
        return tuple_of(results).release();
    } catch (const Raised& e) {
        e.restore();
    } catch (const std::exception& e) {
        if (call) {
            call->thrown = std::current_exception();
        }
        raise(opforge_PyExc_RuntimeError, e.what());
    } catch (...) {
        if (call) {
            call->thrown = std::current_exception();
        }
        raise(opforge_PyExc_RuntimeError, "Caught an unknown exception!");
    }
    return nullptr;
}
// backward(ctx, *grads)
OPFORGE_IF_USED
inline PyObject* autograd_backward(PyObject*, PyObject* args) {
    try {
        Ref ctx = Ref::borrow(opforge_PyTuple_GetItem(args, 0));
        Ref capsule = attribute(ctx.get(), autograd().call);
        AutogradCall& call = call_in(capsule.get());
        std::vector<at::Tensor> grads, list, saved_tensors;
        for (OpforgePySize i = 1; i < opforge_PyTuple_Size(args); ++i) {
            grads.push_back(tensor_or_undefined(opforge_PyTuple_GetItem(args, i)));
        }
        Ref saved = attribute(ctx.get(), autograd().saved_tensors);
        for (OpforgePySize i = 0; i < opforge_PyTuple_Size(saved.get()); ++i) {
            saved_tensors.push_back(tensor_or_undefined(opforge_PyTuple_GetItem(saved.get(), i)));
        }
        std::vector<at::Tensor> all;
        {
            // torch gives its C++ functions a thread without the GIL
            void* thread = opforge_PyEval_SaveThread();
            try {
                std::lock_guard<std::recursive_mutex> hold(call.lock);
                call.context.saved_.swap(saved_tensors);
                Finally clear([&] { call.context.saved_.swap(saved_tensors); });
                all = call.backward(&call.context, std::move(grads));
            } catch (...) {
                opforge_PyEval_RestoreThread(thread);
                throw;
            }
            opforge_PyEval_RestoreThread(thread);
        }
        const bool is_undefined = std::all_of(all.begin() + std::min(all.size(), call.inputs), all.end(),
                                              [](const at::Tensor& t) { return !t.defined(); });
        if (all.size() < call.inputs || !is_undefined) {
            std::string name;
            Convert<std::string>::load(attribute(Ref::steal(opforge_PyObject_Type(ctx.get())).get(), "__name__").get(),
                                       true, name);
            c10::facade::fail(c10::facade::text("function ", name,
                                                " returned an incorrect number of gradients (expected ", call.inputs,
                                                ", got ", all.size(), ")"));
        }
        for (size_t i = 0; i < call.inputs; ++i) {
            if (!call.variables[i] && all[i].defined()) {
                c10::facade::fail(
                    c10::facade::text("function returned a gradient different that is defined at position ", i + 1,
                                      ", std the corresponding forward input was not a Variable"));
            }
        }
        for (size_t place : call.places) {
            list.push_back(all[place]);
        }
        return tuple_of(list, 1).release();
    } catch (const Raised& e) {
        e.restore();
    } catch (const c10::IndexError& e) {
        raise(opforge_PyExc_IndexError, e.what());
    } catch (const c10::ValueError& e) {
        raise(opforge_PyExc_ValueError, e.what());
    } catch (const c10::TypeError& e) {
        raise(opforge_PyExc_TypeError, e.what());
    } catch (const c10::NotImplementedError& e) {
        raise(opforge_PyExc_NotImplementedError, e.what());
    } catch (const c10::LinAlgError& e) {
        raise_torch_error("torch.linalg", "LinAlgError", e.what());
    } catch (const c10::OutOfMemoryError& e) {
        raise_torch_error("torch", "OutOfMemoryError", e.what());
    } catch (const std::exception& e) {
        raise(opforge_PyExc_RuntimeError, e.what());
    } catch (...) {
        raise(opforge_PyExc_RuntimeError, "Caught an unknown exception!");
    }
    return nullptr;
}
OPFORGE_IF_USED
inline Ref static_method(MethodDefinition& definition) {
    Ref function = checked(opforge_PyCMethod_New(&definition, nullptr, nullptr, nullptr));
    return called(attribute(imported("builtins").get(), "staticmethod").get(), function);
}
// A Python class of this library's, by its functions: `apply`, and what that calls outside of transforms.
struct PythonFunction {
    PyObject* apply;
    PyObject* direct;
};
// Returns the Python class that has the name of the C++ class, as its node has in torch's own way.
OPFORGE_IF_USED
inline PythonFunction make_function(const std::string& full) {
    const size_t begin = full.rfind("::", full.find('<'));  // without its namespaces
    const std::string name = full.substr(begin == std::string::npos ? 0 : begin + 2);

    static MethodDefinition forward{"forward", autograd_forward<>, 1, nullptr};
    static MethodDefinition backward{"backward", autograd_backward<>, 1, nullptr};
    Ref base = attribute(attribute(torch().module, "autograd").get(), "Function");
    Ref bases = checked(opforge_PyTuple_New(1));
    checked(opforge_PyTuple_SetItem(bases.get(), 0, Ref(base).release()));
    Ref members = checked(opforge_PyDict_New());
    checked(opforge_PyDict_SetItemString(members.get(), "forward", static_method(forward).get()));
    checked(opforge_PyDict_SetItemString(members.get(), "backward", static_method(backward).get()));
    Ref builtins = imported("builtins");
    Ref made = called(attribute(builtins.get(), "type").get(), Convert<std::string>::cast(name), bases, members);
    Ref above = called(attribute(builtins.get(), "super").get(), base, made);
    // Texts of errors and profiles name the node of the graph, which is of a class that torch makes.
    const std::string node = "torch::autograd::CppNode<" + full + (full.back() == '>' ? " >" : ">");
    checked(opforge_PyObject_SetAttrString(attribute(made.get(), "_backward_cls").get(), "__name__",
                                           Convert<std::string>::cast(node).get()));
    return {attribute(made.get(), "apply").release(), attribute(above.get(), "apply").release()};
}

// The tensors among a function's arguments, as torch finds them: each of a TensorList counts, and a std::vector of them
// is one argument without a gradient.
OPFORGE_IF_USED
struct BasicInputs {
    std::vector<at::Tensor> tensors;
    std::vector<size_t> places;
    std::vector<bool> variables;
    size_t count = 0;
    std::vector<PyObject*> objects;  // of the tensors, as far as they were needed
    bool in_transform = false;       // asked once a call: a node alone needs it too

    // Without room for them the lists would grow with each argument.
    explicit BasicInputs(size_t arguments) {
        tensors.reserve(arguments);
        places.reserve(arguments);
        variables.reserve(arguments);
    }
    BasicInputs(const BasicInputs&) = delete;
    BasicInputs& operator=(const BasicInputs&) = delete;
    ~BasicInputs() {
        if (!objects.empty()) {
            Gil gil;  // forward may have given it up
            for (PyObject* o : objects) {
                opforge_Py_DecRef(o);
            }
        }
    }
    void add(const at::Tensor& t) {
        if (t.defined()) {
            tensors.push_back(t);
            places.push_back(count);
        }
        variables.push_back(true);
        ++count;
    }
    void add(const std::optional<at::Tensor>& t) {
        add(t ? *t : at::Tensor());
        variables.back() = t && t->defined();
    }
    void add(at::TensorList list) {
        for (const at::Tensor& t : list) {
            add(t);
        }
    }
    template <class T>
    void add(const T&) {
        variables.push_back(false);
        ++count;
    }
    PyObject* object(size_t i) {
        objects.resize(tensors.size());
        return objects[i] ? objects[i] : objects[i] = from_tensor(tensors[i]).release();
    }
};
using Inputs = BasicInputs<>;
inline bool is_differentiable(const at::Tensor& t) { return t.is_floating_point() || t.is_complex(); }

// Whether forward can run without a node behind it: no gradient passes through it. Only a sure no is one.
OPFORGE_IF_USED
inline bool needs_no_node(Inputs& inputs) {
    Gil gil;
    const Autograd& python = autograd();
    inputs.in_transform = python.in_transform();
    if (inputs.in_transform || !python.is_plain()) {
        return false;
    }
    if (!at::GradMode::is_enabled()) {
        return true;
    }
    for (size_t i = 0; i < inputs.tensors.size(); ++i) {
        if (is_differentiable(inputs.tensors[i])) {
            PyObject* o = inputs.object(i);
            if (!python.is_plain(o) || is_true(attribute(o, python.requires_grad))) {
                return false;
            }
        }
    }
    return true;
}
// Whether torch returns results as they are. It makes a view of an argument that is returned, and takes a result out
// of the graph that it is in.
OPFORGE_IF_USED
inline bool are_new(const std::vector<at::Tensor>& results, Inputs& inputs) {
    Gil gil;
    const Autograd& python = autograd();
    for (const at::Tensor& result : results) {
        if (!result.defined()) {
            continue;
        }
        Ref object = from_tensor(result);
        if (is_differentiable(result) &&
            (!python.is_plain(object.get()) || is_true(attribute(object.get(), python.requires_grad)))) {
            return false;
        }
        for (size_t i = 0; i < inputs.tensors.size(); ++i) {
            if (inputs.tensors[i].scalar_type() == result.scalar_type() && inputs.object(i) == object.get()) {
                return false;
            }
        }
    }
    return true;
}
OPFORGE_IF_USED
inline std::vector<at::Tensor> apply(const PythonFunction& function, const std::shared_ptr<AutogradCall>& call,
                                     Inputs& inputs) {
    const size_t n = inputs.tensors.size();
    Ref arguments = checked(opforge_PyTuple_New(static_cast<OpforgePySize>(n) + 1));
    auto* shared = new std::shared_ptr<AutogradCall>(call);
    Ref capsule = checked(opforge_PyCapsule_New(shared, call_name, free_call<>));
    checked(opforge_PyTuple_SetItem(arguments.get(), 0, capsule.release()));
    for (size_t i = 0; i < n; ++i) {
        checked(opforge_PyTuple_SetItem(arguments.get(), static_cast<OpforgePySize>(i + 1),
                                        Ref::borrow(inputs.object(i)).release()));
    }
    PyObject* out =
        opforge_PyObject_Call(inputs.in_transform ? function.apply : function.direct, arguments.get(), nullptr);
    if (!out) {
        if (call->thrown) {
            opforge_PyErr_Clear();
            std::rethrow_exception(std::exchange(call->thrown, nullptr));
        }
        throw Raised();
    }
    Ref result = Ref::steal(out);
    std::vector<at::Tensor> list(static_cast<size_t>(opforge_PyTuple_Size(result.get())));
    for (size_t i = 0; i < list.size(); ++i) {
        list[i] = tensor_or_undefined(opforge_PyTuple_GetItem(result.get(), static_cast<OpforgePySize>(i)));
    }
    return list;
}
}  // namespace opforge_facade_python

namespace torch {
inline namespace opforge_facade {
namespace autograd {

template <class T>
struct Function {
    // Returns what T::forward returns, with T::backward behind it in autograd's graph.
    template <class X = T, class... A>
    static auto apply(A&&... arguments) {
        namespace python = ::opforge_facade_python;
        using R = std::decay_t<decltype(X::forward(static_cast<AutogradContext*>(nullptr), std::declval<A>()...))>;
        if (at::in_parallel_region()) {
            c10::facade::fail(
                "apply of an autograd Function within parallel_for is not possible in the facade: it runs Python, "
                "and the thread that waits for this one may hold its lock");
        }
        if (!opforge_Py_IsInitialized || !opforge_Py_IsInitialized()) {
            c10::facade::fail("an autograd Function of the facade needs Python in its process");
        }
        python::Inputs inputs(sizeof...(A));
        (inputs.add(arguments), ...);
        auto call = std::make_shared<python::AutogradCall>();
        auto forward = [&](AutogradContext& context) -> variable_list {
            if constexpr (std::is_same_v<R, at::Tensor>) {
                return {X::forward(&context, std::forward<A>(arguments)...)};
            } else {
                return X::forward(&context, std::forward<A>(arguments)...);
            }
        };
        variable_list list;
        bool is_done = false;
        if (python::needs_no_node(inputs)) {
            call->context.needs_.assign(inputs.count, false);
            {
                at::NoGradGuard no_grad;
                list = forward(call->context);
            }
            is_done = call->context.dirty_.empty() && python::are_new(list, inputs);
            call->forward = [&list](AutogradContext&) { return std::move(list); };
        } else {
            call->forward = forward;
        }
        if (!is_done) {
            call->places = std::move(inputs.places);
            call->variables = std::move(inputs.variables);
            call->inputs = inputs.count;
            call->backward = [](AutogradContext* context, variable_list grads) -> variable_list {
                return X::backward(context, std::move(grads));
            };
            python::Gil gil;
            static std::atomic<const python::PythonFunction*> function{nullptr};
            if (!function) {
                function = new python::PythonFunction(python::make_function(python::demangled(typeid(T))));
            }
            list = python::apply(*function, call, inputs);
        }
        if constexpr (std::is_same_v<R, at::Tensor>) {
            return list.at(0);
        } else {
            return list;
        }
    }
};
}  // namespace autograd
}  // namespace opforge_facade
}  // namespace torch
