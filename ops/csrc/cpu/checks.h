#pragma once

// The checks of an op's tensors, without torch. A message is a list of words that one function joins: strings that are
// added up where they are thrown take longer to compile than most kernels.

#include <cstdint>
#include <cstring>
#include <initializer_list>
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

// Throws std::runtime_error. Messages state the value, what was expected, and what to do.
[[noreturn, gnu::cold]] void refuse(std::initializer_list<Word> words);

inline bool equal(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

// Throws if an operand is not on `expected`. `index` is its index in the list `name`, or -1 if that is not a list.
void check_device(const char* device, const char* expected, const char* name, int64_t index);

// Throws if a list does not have `expected` tensors, the number of parameters.
void check_length(const char* name, size_t length, size_t expected);

// Throws unless the operands of one parameter have its shape, and its order of elements without gaps. `index` is the
// parameter's index in the lists, or -1 if there are no lists.
void check_layouts(const Operand* operands, Names names, int64_t index);

// Throws if elements of a tensor that is written may share memory, as after expand: threads would race for them.
void check_distinct(const Operand& operand, const char* name);

// Throws if no kernel supports the dtype. float16 is supported only if `narrow`.
DType check_dtype(const Operand& operand, const char* name, int64_t index, bool narrow);

// Throws if kernels that take any of the three dtypes do not support this one.
DType values_dtype(const char* dtype, const char* name);

// Throws if the step is not counted from 1.
void check_step(int64_t step);

// Checks one parameter's operands and returns them for a kernel. `index` as for check_layouts.
TensorGroup checked_group(const Operand* operands, Names names, int64_t index);

}  // namespace opforge::cpu
