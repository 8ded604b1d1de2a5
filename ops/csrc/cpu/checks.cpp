#include "checks.h"

#include <cstdio>
#include <stdexcept>
#include <string>

namespace opforge::cpu {
namespace {

void append(std::string& text, const char* word) { text.append(word); }

void append(std::string& text, int64_t number) {
    char digits[24];
    std::snprintf(digits, sizeof digits, "%lld", static_cast<long long>(number));
    append(text, digits);
}

void append(std::string& text, const Word& word) {
    switch (word.kind) {
        case Word::Kind::Integer:
            return append(text, word.number);
        case Word::Kind::Real:
            return append(text, std::to_string(word.real).c_str());
        case Word::Kind::Tuple:
        case Word::Kind::List: {
            const bool is_tuple = word.kind == Word::Kind::Tuple;
            append(text, is_tuple ? "(" : "[");
            for (int64_t i = 0; i < word.number; ++i) {
                append(text, i > 0 ? ", " : "");
                append(text, word.numbers[i]);
            }
            return append(text, !is_tuple ? "]" : word.number == 1 ? ",)" : ")");
        }
        default:
            append(text, word.text);
            if (word.kind == Word::Kind::Text) return;
            append(text, "[");
            append(text, word.number);
            append(text, "]");
    }
}

// Whether the elements fill their memory without gaps or overlap, in any order of dimensions.
bool is_dense(const Operand& operand) {
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

bool same_shape(const Operand& a, const Operand& b) {
    return a.dim == b.dim && std::memcmp(a.sizes, b.sizes, static_cast<size_t>(a.dim) * sizeof(int64_t)) == 0;
}

// Whether two tensors of one shape store their elements in the same order. Dimensions of size 1 do not matter.
bool same_order(const Operand& a, const Operand& b) {
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

}  // namespace

void refuse(std::initializer_list<Word> words) {
    std::string text;
    for (const Word& word : words) append(text, word);
    throw std::runtime_error(text);
}

void check_step(int64_t step) {
    if (step < 1) refuse({"step is ", step, ", expected 1 at the first step: count it before the call"});
}

void check_layouts(const Operand* operands, Names names, int64_t index) {
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

void check_distinct(const Operand& operand, const char* name) {
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

DType check_dtype(const Operand& operand, const char* name, int64_t index, bool narrow) {
    if (equal(operand.dtype, "float32")) return DType::Float32;
    if (equal(operand.dtype, "bfloat16")) return DType::BFloat16;
    if (equal(operand.dtype, "float16") && narrow) return DType::Float16;
    refuse({Word(name, index), " is ", operand.dtype, ", expected float32",
            (narrow ? ", bfloat16 or float16" : " or bfloat16"), ": convert it with .to(torch.float32)",
            (narrow ? ", or use torch.optim, which takes other dtypes" : "")});
}

DType values_dtype(const char* dtype, const char* name) {
    if (equal(dtype, "float32")) return DType::Float32;
    if (equal(dtype, "bfloat16")) return DType::BFloat16;
    if (equal(dtype, "float16")) return DType::Float16;
    refuse({name, " is ", dtype, ", expected float32, bfloat16 or float16: convert it with .to(torch.float32)"});
}

void check_device(const char* device, const char* expected, const char* name, int64_t index) {
    if (equal(device, expected)) return;
    refuse({Word(name, index), " is on ", device, ", expected ", expected,
            ": move it with .to(), or use the op of its device"});
}

void check_length(const char* name, size_t length, size_t expected) {
    if (length == expected) return;
    refuse({name, " has ", length, " tensors, expected ", expected, ": pass one for each parameter"});
}

TensorGroup checked_group(const Operand* operands, Names names, int64_t index) {
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
