// Exceptions, and how a call of torch's C functions that failed becomes one.
#pragma once
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/csrc/stable/c/shim.h>

// On what runs when a library is loaded or a call fails. The compiler makes it small: in an edited source that is a
// fifth of its work.
#define OPFORGE_COLD __attribute__((cold))

// Before a function or a class that not every library uses: as a template, what it needs is instantiated where it is
// used. In an edited source that compiles with the precompiled header, the rest would be a third of the work.
#define OPFORGE_IF_USED template <int = 0>

// Newer than the oldest torch: weak, so that one binary loads everywhere and uses it where it is.
extern "C" __attribute__((weak, visibility("default"))) const char* torch_exception_get_what_without_backtrace();

namespace c10 {
inline namespace opforge_facade {

// Not a class of the name c10::Error: libtorch would take it for its own, whose layout differs, as
// type_infos are compared by name. The inline namespace gives it another one.
class Error : public std::exception {
public:
    explicit Error(std::string text, const std::string& = {}) : text_(std::move(text)) {}  // and a backtrace
    const char* what() const noexcept override { return text_.c_str(); }
    const char* what_without_backtrace() const noexcept { return text_.c_str(); }
    const std::string& msg() const noexcept { return text_; }

private:
    std::string text_;
};
class IndexError : public Error {
    using Error::Error;
};
class ValueError : public Error {
    using Error::Error;
};
class TypeError : public Error {
    using Error::Error;
};
class NotImplementedError : public Error {
    using Error::Error;
};
class LinAlgError : public Error {
    using Error::Error;
};
class OutOfMemoryError : public Error {
    using Error::Error;
};

namespace facade {
inline std::string_view view_of(std::string_view part) { return part; }
inline std::string_view view_of(const char* part) { return part ? part : std::string_view(); }
inline std::string_view view_of(char* part) { return view_of(static_cast<const char*>(part)); }
// Of texts alone. A compiler makes a third of the code for it that it makes for a stream, or for a sum of strings.
OPFORGE_COLD inline std::string joined(std::initializer_list<std::string_view> parts) {
    std::string all;
    for (std::string_view part : parts) {
        all.append(part.data(), part.size());
    }
    return all;
}
// Appended to a text: std::to_string is made by the compiler in each source.
OPFORGE_COLD inline void append(std::string& text, std::string_view part) { text.append(part.data(), part.size()); }
OPFORGE_COLD inline void append(std::string& text, size_t number) {
    char digits[24];
    std::snprintf(digits, sizeof(digits), "%zu", number);
    text.append(digits);
}
template <class T>
constexpr bool is_text = std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view> ||
                         std::is_same_v<T, const char*> || std::is_same_v<T, char*>;
inline std::string text() { return {}; }
template <class T>
void print(std::ostream& stream, const T& part) {
    stream << part;
}
// Not as a template: one of each length of a literal would be made.
inline void print(std::ostream& stream, const char* part) { stream << part; }
// As torch's logging prints it, which its headers bring along: at most 100 elements.
template <class T, class A>
void print(std::ostream& stream, const std::vector<T, A>& list) {
    size_t i = 0;
    for (const auto& element : list) {
        if (i == 100) {
            stream << " ...";
            break;
        }
        stream << (i++ ? " " : "");
        print(stream, element);
    }
}
template <class... A>
OPFORGE_COLD std::string text(const A&... parts) {
    if constexpr ((is_text<std::decay_t<const A&>> && ...)) {
        return joined({view_of(parts)...});
    } else {
        std::ostringstream stream;
        (print(stream, parts), ...);
        return stream.str();
    }
}
// A check without a text of its own has torch's.
template <class... A>
std::string check_text([[maybe_unused]] const char* otherwise, const A&... parts) {
    if constexpr (sizeof...(A) == 0) {
        return otherwise;
    } else {
        return ::c10::facade::text(parts...);
    }
}
template <class E = Error>
[[noreturn]] OPFORGE_COLD void fail(const std::string& text) {
    throw E(text);
}

// This thread's calls of the dispatcher, and what one of this library's own functions threw below one. The dispatcher
// keeps only a text, and before torch 2.13 not even that.
struct Below {
    std::exception_ptr thrown;
    int depth = 0;
};
inline Below& below() {
    static thread_local Below state;
    return state;
}
class Depth {
public:
    Depth() : below_(below()) {
        ++below_.depth;
        if (below_.thrown) {
            below_.thrown = nullptr;
        }
    }
    ~Depth() { --below_.depth; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

private:
    Below& below_;  // looked up once: finding a thread's own data is a call of a function
};

inline bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }
inline bool begins(const std::string& text, const char* part) { return text.rfind(part, 0) == 0; }
using Parts = std::initializer_list<const char*>;
OPFORGE_COLD inline bool has_any(const std::string& text, Parts parts) {
    for (const char* part : parts) {
        if (has(text, part)) {
            return true;
        }
    }
    return false;
}
OPFORGE_COLD inline bool begins_any(const std::string& text, Parts parts) {
    for (const char* part : parts) {
        if (begins(text, part)) {
            return true;
        }
    }
    return false;
}
// The stable ABI gives an error's text without its type. These texts are those of torch's errors that
// Python sees as another type than RuntimeError.
OPFORGE_COLD inline bool is_index_error(const std::string& text, const std::string& what) {
    if (begins_any(text, {"Dimension out of range (expected to be in range", "Dimension specified as",
                          "select(): index ", "select() cannot be applied to a 0-dim tensor",
                          "slice() cannot be applied to a 0-dim tensor", "start out of range", "The shape of the mask",
                          "index out of range in self", "index_copy_(): When source is scalar, index",
                          "out of range: tried to access index ", "put_(): Expected source and index to have"}) ||
        has_any(text, {"Index is supposed to be a vector", "Index should have dimension 1 or 0",
                       "out of range for tensor of dimension", "too many indices for tensor",
                       "invalid index of a 0-dim tensor"})) {
        return true;
    }
    if (has(text, "Expected reduction dim ")) {
        return !(has(text, "to be specified") &&
                 begins_any(text, {"amin()", "amax()", "min()", "max()", "hash_tensor:"}));
    }
    return begins(what, "aten::index") && what.size() <= sizeof("aten::index_put_") &&
           has(text, "is out of bounds for dimension");
}
OPFORGE_COLD inline bool is_not_implemented(const std::string& text) {
    return begins_any(text, {"Could not run 'aten::", "There were no tensor arguments to this function",
                             "convolution_overrideable not implemented",
                             "convolution_backward_overrideable:", "Cannot copy out of meta tensor",
                             "Unrecognised padding mode ", "Unlike NumPy, torch.sign is not intended",
                             "signbit is not implemented for complex tensors"}) ||
           has_any(text, {"\" not implemented for '", " is not supported for complex inputs",
                          " is not supported for complex types"});
}
OPFORGE_COLD inline bool is_value_error(const std::string& text, const std::string& what) {
    return begins_any(text,
                      {"binomial only supports floating-point dtypes", "Expected input batch_size (",
                       "input tensor is empty and has no data", "For 1D input, 1D target must have",
                       "torch.cat(): expected a non-empty list of Tensors",
                       "running_mean and running_var must either both be None", "Expected 1 or more dimensions (got ",
                       "SmallVector unable to grow", "cannot create std::vector larger than max_size()"}) ||
           (what == "aten::unfold_backward" && begins(text, "step is ")) ||
           (begins(text, "Input tensor must have at least ") && has(text, " dimensions, but got "));
}
[[noreturn]] OPFORGE_COLD inline void fail_as_torch(const std::string& text, const std::string& what) {
    if (text.empty()) {
        // a mode, a subclass or a fake tensor raised it in Python, where its type and text stay
        fail(joined({what, " raised an exception of Python, of which torch's stable ABI passes nothing on"}));
    }
    if (begins(text, "isIntList() INTERNAL ASSERT FAILED")) {
        // a kernel of integers for a schema of symbolic ones: the operator of autograd, which is left out here,
        // converts
        fail(joined({what,
                     " in inference mode or in a transform is not on torch's stable ABI: it passes its list of "
                     "integers as one of another type. Call it outside, or under torch.no_grad()"}));
    }
    if (begins(text, "Could not find schema for ")) {
        fail(joined({text, " It was in torch 2.10 and this torch has removed it: use another operator"}));
    }
    if (is_index_error(text, what)) {
        fail<IndexError>(text);
    }
    if (is_not_implemented(text)) {
        fail<NotImplementedError>(text);
    }
    if (begins_any(text, {"CUDA out of memory. Tried to allocate", "HIP out of memory. Tried to allocate",
                          "XPU out of memory. Tried to allocate"})) {
        fail<OutOfMemoryError>(text);
    }
    if (is_value_error(text, what)) {
        fail<ValueError>(text);
    }
    if (begins(text, "torch.cat(): input types can't be cast")) {
        fail<TypeError>(text);
    }
    if (has_any(text, {"could not be completed because the input", ": The solver failed because the input matrix",
                       ": The algorithm failed to converge because the input matrix",
                       ": The least squares solution could not be computed because the input matrix"})) {
        fail<LinAlgError>(text);
    }
    fail(text);
}
[[noreturn]] OPFORGE_COLD inline void failed(const char* what) {
    if (below().thrown) {
        std::rethrow_exception(std::exchange(below().thrown, nullptr));
    }
    if (torch_exception_get_what_without_backtrace) {
        fail_as_torch(torch_exception_get_what_without_backtrace(), what);
    }
    fail(joined(
        {"torch refused ", what, ": its error's text is on standard error, as torch before 2.13 passes none on"}));
}
inline void check(AOTITorchError code, const char* what) {
    if (__builtin_expect(code != AOTI_TORCH_SUCCESS, 0)) {
        failed(what);
    }
}
}  // namespace facade

template <class... A>
std::string str(const A&... parts) {
    return ::c10::facade::text(parts...);
}

}  // namespace opforge_facade
}  // namespace c10
