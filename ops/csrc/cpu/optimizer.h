#pragma once

// The checks of the optimizers' tensors, without torch.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

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

// Throws std::runtime_error. Messages state the value, what was expected, and what to do.
[[noreturn]] void refuse(const std::string& message);

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

// Throws if the step is not counted from 1.
void check_step(int64_t step);

// Checks one parameter's operands and returns them for a kernel. `index` as for check_layouts.
TensorGroup checked_group(const Operand* operands, Names names, int64_t index);

// What create_* stores for later calls under the caller's id: one mode.
class OptimizerIds {
public:
    // `op` is the part of the function's name after create_, such as "adam".
    explicit OptimizerIds(const char* op) : op_(op) {}

    // Replaces the mode of an earlier call with the same id.
    void create(int64_t id, bool mode);
    bool mode(int64_t id) const;
    // An unknown id is not an error, so destroying twice is allowed.
    void destroy(int64_t id);

private:
    const char* op_;
    mutable std::mutex mutex_;
    std::map<int64_t, bool> modes_;
};

}  // namespace opforge::cpu
