// TORCH_LIBRARY*, torch::RegisterOperators: ops with the schemas and names that a source states.
#pragma once
#include "callables.h"
#include "checks.h"
#include "indexing.h"
#include "module.h"
#include "python.h"

#ifndef OPFORGE_FACADE_SLOTS
#define OPFORGE_FACADE_SLOTS 256
#endif

// Newer than the oldest torch: weak, as in errors.h.
extern "C" __attribute__((weak, visibility("default"))) AOTITorchError
torch_library_set_python_module(TorchLibraryHandle self, const char* module, const char* context);

namespace opforge_facade_detail {

// What is kept of an op's argument while its function runs.
template <class T>
using op_kept_t = owned_t<bare_t<T>>;

template <class T>
struct IsDict : std::false_type {};
template <class K, class V>
struct IsDict<c10::Dict<K, V>> : std::true_type {};
// Whether the stable ABI passes no value of a type: it has dictionaries, or tuples that are not a function's result.
template <class T>
struct NeedsPython : std::disjunction<IsDict<T>, at::facade::is_tuple<T>> {};
template <class T>
struct NeedsPython<std::optional<T>> : NeedsPython<T> {};
template <class T, class A>
struct NeedsPython<std::vector<T, A>> : NeedsPython<T> {};
template <class T>
struct NeedsPython<c10::List<T>> : NeedsPython<T> {};
template <class R>
struct ResultNeedsPython : NeedsPython<R> {};
template <class... E>
struct ResultNeedsPython<std::tuple<E...>> : std::disjunction<NeedsPython<bare_t<E>>...> {};
template <class A, class B>
struct ResultNeedsPython<std::pair<A, B>> : std::disjunction<NeedsPython<bare_t<A>>, NeedsPython<bare_t<B>>> {};
template <class S>
struct OpNeedsPython;
template <class R, class... A>
struct OpNeedsPython<R(A...)> : std::disjunction<ResultNeedsPython<bare_t<R>>, NeedsPython<op_kept_t<A>>...> {};

template <class T>
std::string joined(const std::vector<T>& parts, const char* separator = ", ") {
    std::string text;
    for (const auto& part : parts) {
        text += (text.empty() ? "" : separator) + part;
    }
    return text;
}
template <template <class...> class T, class... E>
std::vector<std::string> tuple_types(T<E...>*);

// Returns a C++ type's name in schemas.
template <class T>
std::string schema_type() {
    namespace d = at::facade;
    if constexpr (std::is_same_v<T, at::Tensor>) {
        return "Tensor";
    } else if constexpr (d::is_optional<T>::value) {
        return schema_type<typename T::value_type>() + "?";
    } else if constexpr (d::is_list<T>::value) {
        return schema_type<typename T::value_type>() + "[]";
    } else if constexpr (IsDict<T>::value) {
        return "Dict(" + schema_type<typename T::key_type>() + ", " + schema_type<typename T::mapped_type>() + ")";
    } else if constexpr (d::is_tuple<T>::value) {
        return "(" + joined(tuple_types(static_cast<T*>(nullptr))) + ")";
    } else if constexpr (std::is_same_v<T, std::string>) {
        return "str";
    } else if constexpr (std::is_same_v<T, bool>) {
        return "bool";
    } else if constexpr (std::is_same_v<T, c10::ScalarType>) {
        return "ScalarType";
    } else if constexpr (std::is_same_v<T, c10::Layout>) {
        return "Layout";
    } else if constexpr (std::is_same_v<T, c10::MemoryFormat>) {
        return "MemoryFormat";
    } else if constexpr (std::is_same_v<T, c10::Device>) {
        return "Device";
    } else if constexpr (std::is_integral_v<T> || std::is_same_v<T, c10::SymInt>) {
        return "int";
    } else {
        static_assert(
            std::is_floating_point_v<T>,
            "an argument of this type cannot be an op's on torch's stable ABI: build this source with torch's own "
            "headers (opforge: abi=\"torch\").");
        return "float";
    }
}
template <template <class...> class T, class... E>
std::vector<std::string> tuple_types(T<E...>*) {
    return {schema_type<op_kept_t<E>>()...};
}
template <class R>
std::vector<std::string> result_types() {
    if constexpr (std::is_void_v<R>) {
        return {};
    } else if constexpr (at::facade::is_tuple<bare_t<R>>::value) {
        return tuple_types(static_cast<bare_t<R>*>(nullptr));
    } else {
        return {schema_type<op_kept_t<R>>()};
    }
}

// The stable ABI's kernel: arguments and results on one stack of 64-bit values.
template <class F, class S>
struct Boxed;
template <class F, class R, class... A>
struct Boxed<F, R(A...)> {
    static std::vector<std::string> arguments() { return {schema_type<op_kept_t<A>>()...}; }
    static std::vector<std::string> results() { return result_types<R>(); }
    static void run(void* function, StableIValue* stack, uint64_t given) {
        if (given != sizeof...(A)) {
            c10::facade::fail(c10::facade::text("the op's schema has ", given, " arguments, and its C++ function has ",
                                                sizeof...(A)));
        }
        with(*static_cast<F*>(function), stack, std::index_sequence_for<A...>());
    }
    template <size_t... I>
    static void with(F& f, [[maybe_unused]] StableIValue* stack, std::index_sequence<I...>) {
        // braces: the values are taken in order
        std::tuple<op_kept_t<A>...> kept{at::facade::take<op_kept_t<A>>(stack[I])...};
        if constexpr (std::is_void_v<R>) {
            f(hand<A>(std::get<I>(kept))...);
        } else if constexpr (at::facade::is_tuple<bare_t<R>>::value) {
            const auto result = f(hand<A>(std::get<I>(kept))...);
            put_all(stack, result, std::make_index_sequence<std::tuple_size_v<bare_t<R>>>());
        } else {
            decltype(auto) result = f(hand<A>(std::get<I>(kept))...);
            stack[0] = at::facade::put<bare_t<R>>(result);
        }
    }
    template <class T, size_t... I>
    static void put_all(StableIValue* stack, const T& result, std::index_sequence<I...>) {
        ((stack[I] = at::facade::put<bare_t<std::tuple_element_t<I, T>>>(std::get<I>(result))), ...);
    }
};

// The stable ABI's kernel is a plain function pointer, and sources pass functions at run time: each
// registered function gets one of these slots, and a function of its own that reads it.
struct Slot {
    void (*run)(void*, StableIValue*, uint64_t) = nullptr;
    void* function = nullptr;
};
inline Slot* slots() {
    static Slot all[OPFORGE_FACADE_SLOTS];
    return all;
}
// Throws what a kernel threw as torch knows it: it translates exceptions of the standard's types, and of its own, whose
// layout is another one than the facade's.
[[noreturn]] OPFORGE_COLD inline void throw_to_torch() {
    if (c10::facade::below().depth > 0) {
        c10::facade::below().thrown = std::current_exception();
    }
    try {
        throw;
    } catch (const c10::Error& e) {
        const std::string text = ::pybind11::facade::with_pythons_types(e.what());
        if (dynamic_cast<const c10::IndexError*>(&e)) {
            throw std::out_of_range(text);
        }
        if (dynamic_cast<const c10::ValueError*>(&e)) {
            throw std::invalid_argument(text);
        }
        throw std::runtime_error(text);
    }
}
OPFORGE_IF_USED
inline void run_slot(int i, StableIValue* stack, uint64_t given) {
    try {
        slots()[i].run(slots()[i].function, stack, given);
    } catch (...) {
        throw_to_torch();
    }
}
using Kernel = void (*)(StableIValue*, uint64_t, uint64_t);
template <int I>
void kernel(StableIValue* stack, uint64_t given, uint64_t) {
    run_slot(I, stack, given);
}
template <int... I>
Kernel kernel_of(int i, std::integer_sequence<int, I...>) {
    static const Kernel kernels[] = {&kernel<I>...};
    return kernels[i];
}
template <class F>
Kernel registered(F f) {
    int i = 0;
    while (i < OPFORGE_FACADE_SLOTS && slots()[i].run) {
        ++i;
    }
    if (i == OPFORGE_FACADE_SLOTS) {
        c10::facade::fail(c10::facade::text("this library registers more than ", OPFORGE_FACADE_SLOTS,
                                            " ops: define OPFORGE_FACADE_SLOTS as a larger number"));
    }
    slots()[i].run = &Boxed<F, signature_t<F>>::run;
    slots()[i].function = new F(std::move(f));
    return kernel_of(i, std::make_integer_sequence<int, OPFORGE_FACADE_SLOTS>());
}

// A schema against the C++ function behind it: 64 bits would be read as another type without a word.
struct Declared {
    std::string schema;
    bool has_python_kernel = false;
    std::vector<std::vector<std::string>> functions;  // the types of each function's arguments
};
OPFORGE_IF_USED
inline std::string plain_type(std::string text) {
    std::string r;
    bool in_alias = false;  // Tensor(a!): the parentheses of Dict(str, Tensor) stay
    auto ends_with = [&](std::string_view end) {
        return r.size() >= end.size() && r.compare(r.size() - end.size(), end.size(), end) == 0;
    };
    for (char c : text) {
        in_alias = in_alias || (c == '(' && ends_with("Tensor"));
        if (!in_alias && !(c >= '0' && c <= '9' && ends_with("["))) {
            r += c;
        }
        r += c == ',' ? " " : "";
        in_alias = in_alias && c != ')';
    }
    for (size_t i = r.find("  "); i != std::string::npos; i = r.find("  ")) {
        r.erase(i, 1);
    }
    const std::pair<const char*, const char*> same[] = {{"SymInt", "int"}};
    for (const auto& [from, to] : same) {
        if (r.rfind(from, 0) == 0) {
            r = to + r.substr(std::strlen(from));
        }
    }
    return r;
}
OPFORGE_IF_USED
inline std::vector<std::string> schema_arguments(const std::string& schema) {
    std::vector<std::string> types;
    const size_t open = schema.find('(');
    int depth = 0;
    std::string current;
    auto add = [&] {
        const size_t first = current.find_first_not_of(' ');
        if (first == std::string::npos) {
            return;
        }
        current = current.substr(
            first, current.find('=') == std::string::npos ? std::string::npos : current.find('=') - first);
        current = current.substr(0, current.find_last_not_of(' ') + 1);
        if (current != "*") {
            types.push_back(plain_type(current.substr(0, current.rfind(' '))));
        }
        current.clear();
    };
    for (size_t i = open + 1; i < schema.size(); ++i) {
        const char c = schema[i];
        if (c == ')' && depth == 0) {
            break;
        }
        depth += (c == '(' || c == '[') - (c == ')' || c == ']');
        if (c == ',' && depth == 0) {
            add();
            current.clear();
        } else {
            current += c;
        }
    }
    add();
    return types;
}
OPFORGE_IF_USED
inline void compare(const std::string& name, const Declared& declared) {
    if (declared.schema.empty()) {
        return;
    }
    const auto expected = schema_arguments(declared.schema);
    for (const auto& found : declared.functions) {
        if (found != expected) {
            c10::facade::fail(c10::facade::text("the schema of ", name, " has the arguments (", joined(expected),
                                                "), and the C++ function has (", joined(found),
                                                "): they must be the same"));
        }
    }
    const std::string given = declared.schema.substr(0, declared.schema.find("->"));
    if (declared.has_python_kernel && given.find_first_of("=*") != std::string::npos) {
        c10::facade::fail(
            c10::facade::text("the op ", name,
                              " has a dictionary or a tuple, and its schema has defaults or arguments by name alone: "
                              "torch leaves those out when it calls such an op. Write every argument without a "
                              "default"));
    }
}
OPFORGE_IF_USED
inline Declared& declared(const std::string& name) {
    static std::map<std::string, Declared> all;
    return all[name];
}
}  // namespace opforge_facade_detail

namespace c10 {
inline namespace opforge_facade {
// The keys that guards take (dispatching.h). A number here is the facade's own: torch is asked by the name.
#define OPFORGE_DISPATCH_KEYS(k)                                                                                       \
    k(Undefined) k(CPU) k(CUDA) k(HIP) k(XPU) k(MPS) k(Meta) k(PrivateUse1) k(QuantizedCPU) k(QuantizedCUDA)           \
        k(SparseCPU) k(SparseCUDA) k(SparseCsrCPU) k(SparseCsrCUDA) k(BackendSelect) k(Python) k(Functionalize)        \
            k(ADInplaceOrView) k(Autograd) k(AutogradOther) k(AutogradCPU) k(AutogradCUDA) k(AutogradXPU)              \
                k(AutogradMPS) k(AutogradPrivateUse1) k(AutogradNestedTensor) k(Tracer) k(AutocastCPU) k(AutocastCUDA) \
                    k(AutocastXPU) k(AutocastMPS) k(AutocastPrivateUse1) k(CompositeImplicitAutograd)                  \
                        k(CompositeExplicitAutograd)
#define OPFORGE_ONE_KEY(name) name,
enum class DispatchKey : uint16_t {
    OPFORGE_DISPATCH_KEYS(OPFORGE_ONE_KEY) Autocast = AutocastCUDA,
    CatchAll = Undefined,
    DefaultBackend = CompositeExplicitAutograd
};
#undef OPFORGE_ONE_KEY
OPFORGE_IF_USED
const char* toString(DispatchKey key) {
#define OPFORGE_ONE_KEY(name) #name,
    static const char* const names[] = {OPFORGE_DISPATCH_KEYS(OPFORGE_ONE_KEY)};
#undef OPFORGE_ONE_KEY
    return names[static_cast<size_t>(key)];
}
}  // namespace opforge_facade
}  // namespace c10

namespace at {
inline namespace opforge_facade {
using c10::DispatchKey;
#define OPFORGE_TAGS(t)                                                                                              \
    t(core) t(data_dependent_output) t(dynamic_output_shape) t(flexible_layout) t(generated) t(inplace_view)         \
        t(maybe_aliasing_or_mutating) t(needs_contiguous_strides) t(needs_exact_strides) t(needs_fixed_stride_order) \
            t(nondeterministic_bitwise) t(nondeterministic_seeded) t(pointwise) t(pt2_compliant_tag) t(view_copy)
#define OPFORGE_ONE_TAG(name) name,
enum class Tag { OPFORGE_TAGS(OPFORGE_ONE_TAG) };
#undef OPFORGE_ONE_TAG
OPFORGE_IF_USED
const char* toString(Tag tag) {
#define OPFORGE_ONE_TAG(name) #name,
    static const char* const names[] = {OPFORGE_TAGS(OPFORGE_ONE_TAG)};
#undef OPFORGE_ONE_TAG
    return names[static_cast<size_t>(tag)];
}
}  // namespace opforge_facade
}  // namespace at

namespace torch {
inline namespace opforge_facade {
// The namespaces in which this library's blocks are registered, where a second version in a process has another one.
OPFORGE_IF_USED
std::map<std::string, std::string>& renamed() {
    static std::map<std::string, std::string> all;
    return all;
}

OPFORGE_IF_USED
class BasicLibrary {
public:
    enum Kind { DEF, IMPL, FRAGMENT };
    BasicLibrary(Kind kind, std::string ns, const char* key, const char* file, uint32_t line)
        : ns_(std::move(ns)), key_(key ? key : ""), file_(file), line_(line) {
        // torch's names for other keys, which it does not know as text
        if (key_ == "Autocast") {
            key_ = "AutocastCUDA";
        } else if (key_ == "DefaultBackend") {
            key_ = "CompositeExplicitAutograd";
        }
        c10::facade::check_numbers_once();
        AOTITorchError code = AOTI_TORCH_SUCCESS;
        if (kind == DEF) {
            code = aoti_torch_library_init_def(ns_.c_str(), file, line, &library_);
        } else if (kind == FRAGMENT) {
            code = aoti_torch_library_init_fragment(ns_.c_str(), file, line, &library_);
        } else {
            code = aoti_torch_library_init_impl(ns_.c_str(), key_.c_str(), file, line, &library_);
        }
        c10::facade::check(code, ("TORCH_LIBRARY(" + ns_ + ")").c_str());
    }
    BasicLibrary(const BasicLibrary&) = delete;
    BasicLibrary& operator=(const BasicLibrary&) = delete;

    BasicLibrary& def(const std::string& typed) & {
        const std::string schema = local(typed);
        c10::facade::check(aoti_torch_library_def(library_, schema.c_str()), ("the schema " + schema).c_str());
        remember(schema);
        return *this;
    }
    // Which Python module has the fakes of the ops that follow. Before torch 2.13 the stable ABI passes it not on, and
    // an error of torch.compile names no module.
    BasicLibrary& set_python_module(const char* module, const char* context = "") & {
        if (torch_library_set_python_module) {
            c10::facade::check(torch_library_set_python_module(library_, module, context), "set_python_module()");
        }
        return *this;
    }
    BasicLibrary& impl_abstract_pystub(const char* module, const char* context = "") & {
        return set_python_module(module, context);
    }
    // Tags are advice to compilers. The stable ABI of torch 2.10 passes none: torch's Python module does, as in
    // def_unknown, and without it there are none.
    BasicLibrary& def(const std::string& typed, const std::vector<at::Tag>& tags) & {
        const std::string schema = local(typed);
        if (tags.empty() || !def_by_python(schema, "", tags)) {
            def(typed);
        }
        return *this;
    }
    template <class F>
    BasicLibrary& def(const std::string& typed, F f, const std::vector<at::Tag>& tags) & {
        const std::string schema = local(typed);
        def(schema, tags);
        composite().impl(schema.substr(0, schema.find('(')), std::move(f));
        return *this;
    }
    template <class F>
    BasicLibrary& def(const std::string& typed, F f) & {
        const std::string text = local(typed);
        if (text.find('(') == std::string::npos) {
            def_unknown(deduced<F>(text, false), deduced<F>(text, true));
        } else {
            def(text);
        }
        composite().impl(text.substr(0, text.find('(')), std::move(f));
        return *this;
    }
    template <class F>
    BasicLibrary& impl(const std::string& typed, F f) & {
        const std::string name = local(typed);
        using Box = opforge_facade_detail::Boxed<F, opforge_facade_detail::signature_t<F>>;
        const std::string full = qualified(name);
        auto& declared = opforge_facade_detail::declared(full);
        constexpr bool needs_python =
            opforge_facade_detail::OpNeedsPython<opforge_facade_detail::signature_t<F>>::value;
        declared.functions.push_back(Box::arguments());
        declared.has_python_kernel |= needs_python;
        opforge_facade_detail::compare(full, declared);
        if constexpr (needs_python) {
            impl_by_python(name, std::move(f));
        } else {
            c10::facade::check(torch_library_impl(library_, name.c_str(),
                                                  opforge_facade_detail::registered(std::move(f)), TORCH_ABI_VERSION),
                               ("a function for " + full).c_str());
        }
        return *this;
    }

    // The block's own namespace. A second version of an op in a process is registered in another one.
    const char* own = nullptr;
    // For calls by the source's own names (dispatching.h).
    void keep_name() const { renamed()[own] = ns_; }

private:
    // A name without the block's own namespace, which may be written before it.
    std::string local(const std::string& name) const {
        const std::string before = (own ? std::string(own) : ns_) + "::";
        return name.compare(0, before.size(), before) == 0 ? name.substr(before.size()) : name;
    }
    std::string qualified(const std::string& name) const {
        return name.find("::") == std::string::npos ? ns_ + "::" + name : name;
    }
    void remember(const std::string& schema) {
        const std::string full = qualified(schema.substr(0, schema.find('(')));
        auto& declared = opforge_facade_detail::declared(full);
        declared.schema = schema;
        opforge_facade_detail::compare(full, declared);
    }
    // Without its schema nothing says which tensors an op changes, or returns. torch marks such an op, so that
    // TorchScript keeps its calls, while all else takes the schema as it reads. The stable ABI does not pass the
    // mark: torch.library's own two functions do. They are C functions, and found without an import: no bytecode
    // runs, so the GIL is not handed to a thread that waits for the dynamic loader's lock. Without torch's Python
    // module the schema says that each tensor may change.
    void def_unknown(const std::string& schema, const std::string& changing) {
        if (!def_by_python(schema, "CONSERVATIVE", {})) {
            def(changing);
        }
    }
    // Returns whether there was torch's Python module to define an op.
    bool def_by_python(const std::string& schema, const char* alias_analysis, const std::vector<at::Tag>& tags) {
        namespace py = ::opforge_facade_python;
        if (!opforge_Py_IsInitialized || !opforge_Py_IsInitialized()) {
            return false;
        }
        py::Gil gil;
        py::Ref opened = opened_by_python("FRAGMENT", "");
        if (!opened) {
            return false;
        }
        py::Ref all = py::attribute(py::imported("torch._C").get(), "Tag");
        py::Ref objects = py::checked(opforge_PyList_New(0));
        for (const at::Tag tag : tags) {
            if (py::Ref object = py::attribute_or_none(all.get(), toString(tag))) {  // this torch may not have it
                py::checked(opforge_PyList_Append(objects.get(), object.get()));
            }
        }
        py::called(py::attribute(opened.get(), "define").get(), python_string(schema), python_string(alias_analysis),
                   objects);
        of_python_.push_back(opened.release());
        remember(schema);
        return true;
    }
    // The stable ABI does not pass dictionaries and tuples, and torch's Python module does: the kernel is a C function
    // of Python's. It is called with values of Python's, and lets go of the GIL while the C++ function runs, as
    // torch.ops does.
    template <class F>
    void impl_by_python(const std::string& name, F f) {
        namespace py = ::opforge_facade_python;
        namespace module = ::pybind11::facade;
        auto without_python = [&] {
            c10::facade::fail(c10::facade::text("the op ", qualified(name),
                                                " has a dictionary or a tuple, which needs "
                                                "a process with torch's Python module"));
        };
        if (!opforge_Py_IsInitialized || !opforge_Py_IsInitialized()) {
            without_python();
        }
        py::Gil gil;
        const std::string key = key_.empty() ? "CompositeImplicitAutograd" : key_;
        py::Ref opened = opened_by_python("IMPL", key);
        if (!opened) {
            without_python();
        }
        auto* function = new module::Function();  // as long as the process, as the library is
        function->name = name;
        function->add(module::overload_of(function->name.c_str(), module::Kind::Function, std::move(f),
                                          ::pybind11::call_guard<::pybind11::gil_scoped_release>()));
        // bound to a plain number: a library may be in the dynamic loader here, where no bytecode may run
        // (def_unknown), and nobody pickles a kernel
        py::Ref object = module::function_object(function, py::checked(opforge_PyLong_FromVoidPtr(function)),
                                                 python_string("torch.ops." + ns_));
        py::called(py::attribute(opened.get(), "impl").get(), python_string(name), python_string(key), object);
        of_python_.push_back(opened.release());
    }
    static ::opforge_facade_python::Ref python_string(const std::string& text) {
        return ::opforge_facade_python::checked(
            opforge_PyUnicode_FromStringAndSize(text.data(), static_cast<OpforgePySize>(text.size())));
    }
    // Opens a block by torch's Python module, with the GIL held. Returns an empty reference if it is not imported.
    ::opforge_facade_python::Ref opened_by_python(const char* kind, const std::string& key) const {
        namespace py = ::opforge_facade_python;
        py::Ref modules = py::attribute(py::imported("sys").get(), "modules");
        py::Ref torch =
            py::Ref::borrow(opforge_PyDict_GetItemWithError(modules.get(), python_string("torch._C").get()));
        if (!torch) {
            opforge_PyErr_Clear();
            return {};
        }
        return py::called(py::attribute(torch.get(), "_dispatch_library").get(), python_string(kind),
                          python_string(ns_), python_string(key), python_string(file_),
                          py::checked(opforge_PyLong_FromLongLong(static_cast<long long>(line_))));
    }
    template <class F>
    static std::string deduced(const std::string& name, bool changing) {
        using Box = opforge_facade_detail::Boxed<F, opforge_facade_detail::signature_t<F>>;
        std::string text = name + "(";
        int i = 0;
        for (std::string type : Box::arguments()) {
            if (changing && type.compare(0, 6, "Tensor") == 0) {
                type.insert(6, "(a" + std::to_string(i) + "!)");
            }
            text += (i ? ", " : "") + type + " _" + std::to_string(i);
            ++i;
        }
        auto results = Box::results();
        for (size_t k = 0; k < results.size(); ++k) {
            results[k] += " _" + std::to_string(k);
        }
        std::string result = opforge_facade_detail::joined(results);
        return text + ") -> " + (results.size() == 1 ? result : "(" + result + ")");
    }
    // A function that is given with its schema serves every device, and autograd sees into it.
    BasicLibrary& composite() {
        if (!composite_) {
            composite_ = std::make_unique<BasicLibrary>(IMPL, ns_, "CompositeImplicitAutograd", __FILE__, __LINE__);
        }
        return *composite_;
    }
    TorchLibraryHandle library_ = nullptr;
    std::string ns_, key_;
    const char* file_;
    uint32_t line_;
    std::unique_ptr<BasicLibrary> composite_;
    std::vector<PyObject*> of_python_;  // torch's Python object of each block that it has opened for this one

public:
    // Removes what was registered. A library that is kept lives as long as the process.
    void undo() {
        if (composite_) {
            composite_->undo();
        }
        if (library_) {
            aoti_torch_delete_library_object(library_);
            library_ = nullptr;
        }
        if (!of_python_.empty() && opforge_Py_IsInitialized()) {
            ::opforge_facade_python::Gil gil;
            for (PyObject* opened : of_python_) {
                // nothing can be done about an error here, and the object's end removes the op as well
                ::opforge_facade_python::Ref::steal(opforge_PyObject_CallFunctionObjArgs(
                    ::opforge_facade_python::Ref::steal(opforge_PyObject_GetAttrString(opened, "reset")).get(),
                    static_cast<PyObject*>(nullptr)));
                opforge_PyErr_Clear();
                opforge_Py_DecRef(opened);
            }
            of_python_.clear();
        }
    }
};
using Library = BasicLibrary<>;

namespace facade {
#ifdef OPFORGE_LOADS_FACADE_BLOCKS
// A block waits for opforge's loader: a second version of the library gets other namespaces, and a conflict is an error
// that leaves nothing behind. torch would register it in a static constructor, where an exception ends the process.
OPFORGE_IF_USED
class BasicRegistered final : public opforge::Registration {
public:
    BasicRegistered(Library::Kind kind, const char* ns, const char* key, const char* file, uint32_t line)
        : library(kind, ns, key, file, line) {}
    ~BasicRegistered() override { library.undo(); }

    Library library;
};
OPFORGE_IF_USED
class BasicLibraryInit final : public opforge::Block {
public:
    BasicLibraryInit(Library::Kind kind, std::function<void(Library&)> fill, const char* ns, const char* key,
                     const char* file, uint32_t line)
        : Block(ns, kind != Library::IMPL), kind_(kind), fill_(std::move(fill)), key_(key), file_(file), line_(line) {}

    opforge::Registration* open(const char* in) const override {
        return new BasicRegistered<>(kind_, in, key_, file_, line_);
    }
    void fill(opforge::Registration& registration) const override {
        Library& library = static_cast<BasicRegistered<>&>(registration).library;
        library.own = ns;
        library.keep_name();
        fill_(library);
    }
    void describe(std::string& lines) const override { lines.append(ns).append("\n"); }

private:
    Library::Kind kind_;
    std::function<void(Library&)> fill_;
    const char* key_;
    const char* file_;
    uint32_t line_;
};
#else
// Lives as long as the process: a library is never unloaded.
OPFORGE_IF_USED
struct BasicLibraryInit {
    BasicLibraryInit(Library::Kind kind, void (*fill)(Library&), const char* ns, const char* key, const char* file,
                     uint32_t line) {
        ::opforge_facade_python::register_while_loading([&] { fill(*new Library(kind, ns, key, file, line)); });
    }
};
#endif
using LibraryInit = BasicLibraryInit<>;
}  // namespace facade

class RegisterOperators {
public:
    RegisterOperators() = default;
    template <class F>
    RegisterOperators(const std::string& text, F&& f) {
        op(text, std::forward<F>(f));
    }
    template <class F>
    RegisterOperators& op(const std::string& text, F&& f) & {
        add(text, std::forward<F>(f));
        return *this;
    }
    template <class F>
    RegisterOperators&& op(const std::string& text, F&& f) && {
        add(text, std::forward<F>(f));
        return std::move(*this);
    }

private:
    template <class F>
    static void add(const std::string& text, F&& f) {
        const size_t colons = text.find("::");
        const std::string ns = text.substr(0, colons);
        auto define = [text, colons, f = std::decay_t<F>(std::forward<F>(f))](Library& m) {
            if (colons == std::string::npos) {
                c10::facade::fail(c10::facade::text("the op '", text, "' has no namespace: it is written ns::name"));
            }
            m.def(text.substr(colons + 2), f);
        };
#ifdef OPFORGE_LOADS_FACADE_BLOCKS
        const auto* kept = new std::string(ns);  // as long as the process
        new facade::LibraryInit(Library::FRAGMENT, define, kept->c_str(), nullptr, __FILE__, __LINE__);
#else
        ::opforge_facade_python::register_while_loading(
            [&] { define(*new Library(Library::FRAGMENT, ns, nullptr, __FILE__, __LINE__)); });
#endif
    }
};
namespace jit {
using torch::RegisterOperators;
}
}  // namespace opforge_facade
}  // namespace torch

#define OPFORGE_JOIN_(a, b) a##b
#define OPFORGE_JOIN(a, b) OPFORGE_JOIN_(a, b)
#define OPFORGE_LIBRARY(kind, ns, key, m, unique)                                               \
    static void OPFORGE_JOIN(opforge_library_fill_, unique)(torch::Library&);                   \
    static const torch::facade::LibraryInit OPFORGE_JOIN(opforge_library_, unique)(             \
        torch::Library::kind, &OPFORGE_JOIN(opforge_library_fill_, unique), #ns, key, __FILE__, \
        static_cast<uint32_t>(__LINE__));                                                       \
    void OPFORGE_JOIN(opforge_library_fill_, unique)([[maybe_unused]] torch::Library & m)
#define OPFORGE_LIBRARY_(kind, ns, key, m, unique) OPFORGE_LIBRARY(kind, ns, key, m, unique)
#define TORCH_LIBRARY(ns, m) OPFORGE_LIBRARY_(DEF, ns, nullptr, m, __COUNTER__)
#define TORCH_LIBRARY_FRAGMENT(ns, m) OPFORGE_LIBRARY_(FRAGMENT, ns, nullptr, m, __COUNTER__)
#define OPFORGE_KEY(key) #key
#define TORCH_LIBRARY_IMPL(ns, key, m) OPFORGE_LIBRARY_(IMPL, ns, OPFORGE_KEY(key), m, __COUNTER__)
#define TORCH_FN(f) (&f)
#define TORCH_FN_TYPE(f) decltype(&f)
#define TORCH_SELECTIVE_NAME(name) name
#define TORCH_SELECTIVE_SCHEMA(schema) schema
