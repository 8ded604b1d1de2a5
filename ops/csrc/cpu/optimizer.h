#pragma once

// What the optimizer ops share and what knows no torch: the checks of their tensors, and one pass over all of them.

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <opforge/dtype.h>
#include "kernel.h"

namespace opforge::cpu {

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

struct DTypes {
    DType params, grads, states;
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

// What averages that began at 0 lack at a step: 1 - beta1^step, and the root of 1 - beta2^step. 1 where not wanted.
struct BiasCorrection {
    double first = 1.0, second_root = 1.0;

    BiasCorrection(int64_t step, double beta1, double beta2, bool wanted);
};

// torch's own, through which its number of threads holds here too.
using ParallelFor = void (*)(int64_t total, int64_t grain, void (*part)(int64_t, int64_t, void*), void* context);

// The tensors of one call: checked as they are added, all before the first is changed, then updated in one pass.
class Batch {
public:
    // The kernel for the dtypes of params, grads and states.
    using Table = Kernel (*)(DType params, DType grads, DType states);

    Batch(Names names, Table table) : names_(names), table_(table) {}

    void reserve(size_t count) { items_.reserve(count); }

    // One operand for each name. `index` is their place in the lists, or -1.
    void add(const Operand* operands, int64_t index);

    // Of the operands added last.
    DTypes dtypes() const { return dtypes_; }

    // Threads share the elements of all tensors evenly, whatever the tensors' sizes.
    void run(const void* scalars, ParallelFor parallel_for) const;

private:
    struct Item {
        std::array<void*, kMaxOperands> data;
        Kernel kernel;
        int64_t first;  // elements of the tensors before it
    };

    void run(const void* scalars, int64_t begin, int64_t end) const;

    Names names_;
    Table table_;
    DTypes dtypes_{};
    std::vector<Item> items_;
    int64_t total_ = 0;
};

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
