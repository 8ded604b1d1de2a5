#pragma once

// The checks of an op's tensors, without torch. A message is a list of words that one function joins: strings that are
// added up where they are thrown take longer to compile than most kernels.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <opforge/multi_tensor.h>

namespace opforge::cpu {

constexpr size_t kGradient = 1;  // the operand that is only read

// A tensor as torch describes it.
struct Operand {
    void* data;
    const int64_t* sizes;
    const int64_t* strides;
    int64_t dim;
    int64_t numel;
    const char* dtype;   // as torch names it
    const char* device;  // the type of device
    bool strided;        // not sparse
    bool contiguous;
};

// The names of the op's tensor arguments in the kernel's order: params, grads, then states.
struct Names {
    const char* const* items;
    size_t count;

    template <size_t N>
    constexpr Names(const char* const (&names)[N]) : items(names), count(N) {}
    constexpr Names(const char* const* names, size_t length) : items(names), count(length) {}
    const char* operator[](size_t i) const { return items[i]; }
};

// A word of a message. It points to what it is made from.
struct Word {
    enum class Kind { Text, Indexed, Integer, Real, Tuple, List };

    Kind kind;
    union {
        const char* text;
        const int64_t* numbers;
        double real;
    };
    int64_t number = 0;  // an integer or an index, or how many numbers there are

    Word(const char* text_) : kind(Kind::Text), text(text_) {}
    Word(double number_) : kind(Kind::Real), real(number_) {}
    template <typename T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
    Word(T number_) : kind(Kind::Integer), text(nullptr), number(static_cast<int64_t>(number_)) {}
    // name[index], or the name if the index is -1.
    Word(const char* name, int64_t index) : kind(index < 0 ? Kind::Text : Kind::Indexed), text(name), number(index) {}
    Word(Kind kind_, const int64_t* numbers_, int64_t count) : kind(kind_), numbers(numbers_), number(count) {}
};

// Numbers as Python writes a tuple, (2, 3) or (2,), and as it writes a list.
inline Word tuple_text(const int64_t* numbers, int64_t count) { return {Word::Kind::Tuple, numbers, count}; }
inline Word list_text(const int64_t* numbers, int64_t count) { return {Word::Kind::List, numbers, count}; }

[[gnu::cold, gnu::noinline]] inline void append(std::string& text, int64_t number) {
    char digits[24];
    std::snprintf(digits, sizeof digits, "%lld", static_cast<long long>(number));
    text.append(digits);
}

[[gnu::cold, gnu::noinline]] inline void append(std::string& text, const Word& word) {
    switch (word.kind) {
        case Word::Kind::Integer:
            return append(text, word.number);
        case Word::Kind::Real:
            text.append(std::to_string(word.real));
            return;
        case Word::Kind::Tuple:
        case Word::Kind::List: {
            const bool is_tuple = word.kind == Word::Kind::Tuple;
            text.append(is_tuple ? "(" : "[");
            for (int64_t i = 0; i < word.number; ++i) {
                text.append(i > 0 ? ", " : "");
                append(text, word.numbers[i]);
            }
            text.append(!is_tuple ? "]" : word.number == 1 ? ",)" : ")");
            return;
        }
        default:
            text.append(word.text);
            if (word.kind == Word::Kind::Text) return;
            text.append("[");
            append(text, word.number);
            text.append("]");
    }
}

// Throws std::runtime_error. Messages state the value, what was expected, and what to do.
[[noreturn, gnu::cold, gnu::noinline]] inline void refuse(std::initializer_list<Word> words) {
    std::string text;
    for (const Word& word : words) append(text, word);
    throw std::runtime_error(text);
}

inline bool equal(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

// Whether the elements filltheir memory without gaps or overlap, in any order of dimensions.
inline bool is_dense(const Operand& operand) {
    // The innermost dimension has stride 1. Each further one has the number of elements inside it as its stride.
    int64_t inside = 1;
    while (inside != operand.numel) {
        int64_t d = 0;
        while (d < operand.dim && (operand.sizes[d] == 1 || operand.strides[d] != inside)) ++d;
        if (d == operand.dim) return false;
        inside *= operand.sizes[d];
    }
    return true;
}

inline bool same_shape(const Operand& a, const Operand& b) {
    return a.dim == b.dim && std::memcmp(a.sizes, b.sizes, static_cast<size_t>(a.dim) * sizeof(int64_t)) == 0;
}

// Whether two tensors of one shape store their elements in the same order. Dimensions of size 1 do not matter.
inline bool same_order(const Operand& a, const Operand& b) {
    for (int64_t d = 0; d < a.dim; ++d) {
        if (a.sizes[d] != 1 && a.strides[d] != b.strides[d]) return false;
    }
    return true;
}

// The operands of one parameter, with their names for messages.
struct Group {
    const Operand* operands;
    Names names;
    int64_t index;

    Word name(size_t i) const { return Word(names[i], index); }
    size_t size() const { return names.count; }
};

// Throws if the step is not counted from 1.
inline void check_step(int64_t step) {
    if (step < 1) refuse({"step is ", step, ", expected 1 at the first step: count it before the call"});
}

// Throws unless the operands of one parameter have its shape, and its order of elements without gaps. `index` is the
// parameter's index in the lists, or -1 if there are no lists.
[[gnu::noinline]] inline void check_layouts(const Operand* operands, Names names, int64_t index) {
    const Group group{operands, names, index};
    const Operand& params = group.operands[0];
    bool contiguous = true;
    for (size_t i = 0; i < group.size(); ++i) {
        const Operand& operand = group.operands[i];
        if (!operand.strided)
            refuse({group.name(i), " is sparse, expected a dense tensor: convert it with .to_dense()"});
        if (!same_shape(params, operand)) {
            refuse({group.name(i), " has shape ", tuple_text(operand.sizes, operand.dim), ", expected that of ",
                    group.name(0), ", ", tuple_text(params.sizes, params.dim),
                    ": pass a gradient and states that belong to the parameter"});
        }
        contiguous = contiguous && operand.contiguous;
    }
    if (contiguous || params.numel == 0) return;
    if (!is_dense(params)) {
        refuse({group.name(0), " has strides ", tuple_text(params.strides, params.dim), " for shape ",
                tuple_text(params.sizes, params.dim),
                ", expected elements without gaps or overlap: pass .contiguous() and copy the result back"});
    }
    for (size_t i = 1; i < group.size(); ++i) {
        const Operand& operand = group.operands[i];
        if (same_order(params, operand)) continue;
        refuse({group.name(i), " has strides ", tuple_text(operand.strides, operand.dim), ", expected those of ",
                group.name(0), ", ", tuple_text(params.strides, params.dim), ": copy it into torch.empty_like(",
                group.name(0), ")"});
    }
}

// Throws if elements of a tensor that is written may share memory, as after expand: threads would race for them.
[[gnu::noinline]] inline void check_distinct(const Operand& operand, const char* name) {
    if (operand.contiguous || operand.numel == 0) return;
    for (int64_t d = 0; d < operand.dim; ++d) {
        int64_t inside = 0;  // how far the dimensions of smaller strides reach; of equal ones one counts as inside
        for (int64_t other = 0; other < operand.dim; ++other) {
            const bool is_inside = operand.strides[other] < operand.strides[d] ||
                                   (operand.strides[other] == operand.strides[d] && other > d);
            if (is_inside) inside += (operand.sizes[other] - 1) * operand.strides[other];
        }
        if (operand.sizes[d] == 1 || operand.strides[d] > inside) continue;
        refuse({name, " has strides ", tuple_text(operand.strides, operand.dim), " for shape ",
                tuple_text(operand.sizes, operand.dim),
                ", expected elements that do not overlap, since it is written: pass .contiguous() of it"});
    }
}

// Throws if no kernel supports the dtype. float16 is supported only if `narrow`.
[[gnu::noinline]] inline DType check_dtype(const Operand& operand, const char* name, int64_t index, bool narrow) {
    if (equal(operand.dtype, "float32")) return DType::Float32;
    if (equal(operand.dtype, "bfloat16")) return DType::BFloat16;
    if (equal(operand.dtype, "float16") && narrow) return DType::Float16;
    refuse({Word(name, index), " is ", operand.dtype, ", expected float32",
            (narrow ? ", bfloat16 or float16" : " or bfloat16"), ": convert it with .to(torch.float32)",
            (narrow ? ", or use torch.optim, which takes other dtypes" : "")});
}

// Throws if kernels that take any of the three dtypes do not support this one.
[[gnu::noinline]] inline DType values_dtype(const char* dtype, const char* name) {
    if (equal(dtype, "float32")) return DType::Float32;
    if (equal(dtype, "bfloat16")) return DType::BFloat16;
    if (equal(dtype, "float16")) return DType::Float16;
    refuse({name, " is ", dtype, ", expected float32, bfloat16 or float16: convert it with .to(torch.float32)"});
}

// Throws if an operand is not on `expected`. `index` is its index in the list `name`, or -1 if that is not a list.
[[gnu::noinline]] inline void check_device(const char* device, const char* expected, const char* name, int64_t index) {
    if (equal(device, expected)) return;
    refuse({Word(name, index), " is on ", device, ", expected ", expected,
            ": move it with .to(), or use the op of its device"});
}

// Throws if a list does not have `expected` tensors, the number of parameters.
[[gnu::noinline]] inline void check_length(const char* name, size_t length, size_t expected) {
    if (length == expected) return;
    refuse({name, " has ", length, " tensors, expected ", expected, ": pass one for each parameter"});
}

// Checks one parameter's operands and returns them for a kernel. `index` as for check_layouts.
[[gnu::noinline]] inline TensorGroup checked_group(const Operand* operands, Names names, int64_t index) {
    check_layouts(operands, names, index);
    TensorGroup group{};
    group.numel = operands[0].numel;
    for (size_t i = 0; i < names.count; ++i) {
        group.dtypes[i] = check_dtype(operands[i], names[i], index, i <= kGradient);
        group.data[i] = operands[i].data;
    }
    if (names.count == 4 && group.dtypes[3] != group.dtypes[2]) {
        refuse({Word(names[3], index), " is ", operands[3].dtype, ", expected the dtype of ", Word(names[2], index),
                ", ", operands[2].dtype, ": convert one with .to()"});
    }
    return group;
}

}  // namespace opforge::cpu
