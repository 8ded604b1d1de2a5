#pragma once

// What the optimizer ops share and what knows no torch: the checks of their tensors.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include <opforge/multi_tensor.h>

namespace opforge::cpu {

constexpr size_t kGradient = 1;  // the operand that is only read

// A tensor as torch described it.
struct Operand {
    void* data;
    const int64_t* sizes;
    const int64_t* strides;
    int64_t dim;
    int64_t numel;
    const char* dtype;   // torch's name for it
    const char* device;  // its type
    bool strided;        // not sparse
    bool contiguous;
};

// The op's tensor arguments in the kernel's order: params, grads, then states.
struct Names {
    const char* const* items;
    size_t count;

    template <size_t N>
    constexpr Names(const char* const (&names)[N]) : items(names), count(N) {}
    constexpr Names(const char* const* names, size_t length) : items(names), count(length) {}
    const char* operator[](size_t i) const { return items[i]; }
};

// Throws std::runtime_error; the messages give the value, what was expected, and what to do.
[[noreturn]] void refuse(const std::string& message);

// Refuses an operand that is not on `expected`. `index` is its place in the list `name`, or -1 where that is no list.
void check_device(const char* device, const char* expected, const char* name, int64_t index);

// Refuses lists of which one has not `expected` tensors, the number of parameters.
void check_length(const char* name, size_t length, size_t expected);

// Refuses the operands of one parameter, which lies at `index` of the lists, or at -1 where there are none, unless all
// have its shape, and its order of elements without gaps.
void check_layouts(const Operand* operands, Names names, int64_t index);

// Refuses dtypes that no kernel takes; float16 too where `narrow` is false.
DType check_dtype(const Operand& operand, const char* name, int64_t index, bool narrow);

// Refuses a step that is not counted from 1.
void check_step(int64_t step);

// One parameter's operands for a kernel, checked: `index` is their place in the lists, or -1 where there are none.
TensorGroup checked_group(const Operand* operands, Names names, int64_t index);

// What create_* keeps for later calls under the caller's own id: one mode.
class OptimizerIds {
public:
    // `op` is the part of the functions' names that follows create_, such as "adam".
    explicit OptimizerIds(const char* op) : op_(op) {}

    // Replaces what an earlier call kept under the same id.
    void create(int64_t id, bool mode);
    bool mode(int64_t id) const;
    // An id that is not there is no error: destroying twice is harmless.
    void destroy(int64_t id);

private:
    const char* op_;
    mutable std::mutex mutex_;
    std::map<int64_t, bool> modes_;
};

}  // namespace opforge::cpu
