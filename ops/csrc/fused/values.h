#pragma once

// The torch side of the quantizers: reads their contiguous tensors from the dispatcher's stack, and checks them.

#include "current_device.h"

namespace opforge::fused {

// What a kernel needs of a contiguous tensor on this library's device.
struct Tensor {
    void* data;
    int64_t numel;
    DType dtype;
    bool wide = false;  // whether indexes are int64, not int32
};

enum class Kind { Values, Codes, Params, Indexes };

[[gnu::noinline]] inline Tensor read(AtenTensorHandle handle, const char* name, Kind kind, bool written,
                                     AtenTensorHandle out) {
    check_same_device(handle, name, -1, device_index(out), "out");
    const Operand in = operand(handle, written);
    if (!in.strided || !in.contiguous) refuse({name, " is not contiguous: pass .contiguous() of it"});
    int32_t dtype;
    check_shim(aoti_torch_get_dtype(handle, &dtype), "the dtype");
    if (kind == Kind::Indexes) {
        const bool wide = dtype == aoti_torch_dtype_int64();
        if (wide || dtype == aoti_torch_dtype_int32()) return {in.data, in.numel, DType::Float32, wide};
        refuse({name, " is ", in.dtype, ", expected int32 or int64"});
    }
    const bool is_byte = dtype == aoti_torch_dtype_int8() || dtype == aoti_torch_dtype_uint8();
    if (kind == Kind::Values) return {in.data, in.numel, values_dtype(in.dtype, name)};
    if (kind == Kind::Codes && !is_byte) refuse({name, " is ", in.dtype, ", expected int8 or uint8"});
    if (kind == Kind::Params && dtype != aoti_torch_dtype_float32()) {
        refuse({name, " is ", (is_byte ? "int8" : in.dtype), ", expected float32"});
    }
    return {in.data, in.numel, DType::Float32};
}

inline void check_size(const char* name, int64_t numel, int64_t expected, const char* what) {
    if (numel == expected) return;
    refuse({name, " has ", numel, " elements, expected ", expected, ": ", what});
}

// The first `count` arguments, which must be tensors.
struct Tensors {
    Arguments arguments;
    Tensors(const StableIValue* stack, size_t count) : arguments(stack) {
        for (size_t i = 0; i < count; ++i) arguments.tensor();
    }
    AtenTensorHandle operator[](size_t i) const { return arguments.handles()[i]; }
};

template <size_t kCount>
void check_meta(StableIValue* stack, uint64_t, uint64_t) {
    check_all_meta(Tensors(stack, kCount).arguments.handles());
}

}  // namespace opforge::fused
