#pragma once

// The torch side of the transformer ops: contiguous tensors on the CPU, described for kernels and checked before
// anything is written.

#include <initializer_list>

#include "arguments.h"
#include "update.h"

namespace opforge::cpu {

// A tensor as a kernel takes it. `data` is null if the argument was None.
struct Dense {
    void* data = nullptr;
    const int64_t* sizes = nullptr;
    int64_t dim = 0, numel = 0;
    int32_t dtype = -1;  // torch's number
    int64_t item = 0;    // bytes of an element
    DType kind = DType::Float32;

    int64_t size(int64_t i) const { return sizes[i < 0 ? dim + i : i]; }
    template <typename T>
    T* as() const {
        return static_cast<T*>(data);
    }
};

inline Word text(const Dense& tensor) { return list_text(tensor.sizes, tensor.dim); }

// Describes a tensor of any dtype. Throws unless it is contiguous and on the CPU.
[[gnu::noinline]] inline Dense dense(AtenTensorHandle handle, const char* name, bool written) {
    check_device(device_name(handle), "cpu", name, -1);
    const Operand in = operand(handle, written);
    if (!in.strided || !in.contiguous) refuse({name, " is not contiguous: pass .contiguous() of it"});
    Dense out;
    out.data = in.data, out.sizes = in.sizes, out.dim = in.dim, out.numel = in.numel;
    check_shim(aoti_torch_get_dtype(handle, &out.dtype), "the dtype");
    out.item = static_cast<int64_t>(aoti_torch_dtype_element_size(out.dtype));
    return out;
}

// The same for values in float32, bfloat16 or float16.
[[gnu::noinline]] inline Dense values(AtenTensorHandle handle, const char* name, bool written) {
    Dense out = dense(handle, name, written);
    out.kind = values_dtype(dtype_name(handle), name);
    return out;
}

// The same for int32 numbers, such as indexes.
[[gnu::noinline]] inline Dense numbers(AtenTensorHandle handle, const char* name, bool written) {
    const Dense out = dense(handle, name, written);
    if (out.dtype != aoti_torch_dtype_int32()) {
        refuse({name, " is ", dtype_name(handle), ", expected int32: convert it with .to(torch.int32)"});
    }
    return out;
}

// Throws unless a tensor has these sizes. `what` says where they come from.
[[gnu::noinline]] inline void check_sizes(const Dense& tensor, const char* name, std::initializer_list<int64_t> sizes,
                                          const char* what) {
    bool same = tensor.dim == static_cast<int64_t>(sizes.size());
    for (int64_t i = 0; same && i < tensor.dim; ++i) same = tensor.sizes[i] == sizes.begin()[i];
    if (same) return;
    refuse({name, " has shape ", text(tensor), ", expected ",
            list_text(sizes.begin(), static_cast<int64_t>(sizes.size())), ": ", what});
}

// Throws unless two tensors have one shape.
[[gnu::noinline]] inline void check_same_sizes(const Dense& tensor, const char* name, const Dense& other,
                                               const char* others) {
    bool same = tensor.dim == other.dim;
    for (int64_t i = 0; same && i < tensor.dim; ++i) same = tensor.sizes[i] == other.sizes[i];
    if (same) return;
    refuse({name, " has shape ", text(tensor), ", expected ", text(other), ", that of ", others});
}

[[gnu::noinline]] inline void check_dim(const Dense& tensor, const char* name, int64_t least, int64_t most,
                                        const char* what) {
    if (tensor.dim >= least && tensor.dim <= most) return;
    refuse({name, " has shape ", text(tensor), ", expected ", what});
}

// Throws unless two tensors have one dtype.
[[gnu::noinline]] inline void check_same_dtype(const Dense& tensor, const char* name, const Dense& other,
                                               const char* others) {
    if (tensor.dtype == other.dtype) return;
    refuse({name, " and ", others, " differ in dtype, expected one: convert one of them with .to()"});
}

// Throws if a number of `indexes` is not in [low, high).
[[gnu::noinline]] inline void check_range(const Dense& indexes, const char* name, int64_t low, int64_t high,
                                          const char* what) {
    const int32_t* const data = indexes.as<const int32_t>();
    for (int64_t i = 0; i < indexes.numel; ++i) {
        if (data[i] >= low && data[i] < high) continue;
        refuse({name, " has ", data[i], " at position ", i, ", expected ", low, " to ", high - 1, ": ", what});
    }
}

struct Named {
    const Dense& tensor;
    const char* name;
};

// Throws if one of the first `written` tensors shares memory with another: an index could change after it was checked.
[[gnu::noinline]] inline void check_apart(std::initializer_list<Named> tensors, size_t written) {
    for (const Named* one = tensors.begin(); one != tensors.begin() + written; ++one) {
        for (const Named* other = one + 1; other != tensors.end(); ++other) {
            const char* const a = one->tensor.as<const char>();
            const char* const b = other->tensor.as<const char>();
            const int64_t a_bytes = one->tensor.numel * one->tensor.item;
            const int64_t b_bytes = other->tensor.numel * other->tensor.item;
            if (a_bytes == 0 || b_bytes == 0 || a + a_bytes <= b || b + b_bytes <= a) continue;
            refuse(
                {one->name, " shares memory with ", other->name, ", expected memory of its own: pass .clone() of one"});
        }
    }
}

constexpr Executor kThreads{nullptr, &parallel_for};

// Runs work(begin, end) over `rows` rows of `bytes` bytes each on torch's threads.
template <typename Work>
void each_row(int64_t rows, int64_t bytes, const Work& work) {
    constexpr int64_t kLeast = 65536;  // bytes; less work is not worth waking a thread
    if (rows > 0) share(kThreads, rows, std::max<int64_t>(1, kLeast / std::max<int64_t>(1, bytes)), work);
}

// The Meta kernel of an op that returns nothing. `kinds` has a letter for each argument up to the last tensor: 't' for
// a tensor, 'o' for an optional one, '.' for a number. It checks only the devices: sizes may be symbolic.
template <const auto& kinds>
void meta(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (const char* kind = kinds; *kind; ++kind) {
        if (*kind == 't') {
            arguments.tensor();
        } else if (*kind == 'o') {
            arguments.optional_tensor();
        } else {
            arguments.integer();
        }
    }
    check_all_meta(arguments.handles());
}

}  // namespace opforge::cpu
