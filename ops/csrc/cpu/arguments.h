#pragma once

// The torch side of the optimizers' ops: it reads arguments from the dispatcher's stack, and describes tensors as the
// kernels take them. Nothing is inlined into each op, since that would double the compile time of this side.

#include <opforge/shim.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "checks.h"

namespace opforge::cpu {

inline void check_shim(AOTITorchError code, const char* what) {
    if (code != AOTI_TORCH_SUCCESS) refuse({"torch could not give ", what, " of a tensor"});
}

[[gnu::noinline]] inline const char* device_name(AtenTensorHandle tensor) {
    int32_t type;
    check_shim(aoti_torch_get_device_type(tensor, &type), "the device");
    static const int32_t cpu = aoti_torch_device_type_cpu();
    if (type == cpu) return "cpu";
    if (type == aoti_torch_device_type_meta()) return "meta";
    if (type == aoti_torch_device_type_cuda()) return "cuda";
    if (type == aoti_torch_device_type_xpu()) return "xpu";
    return type == aoti_torch_device_type_mps() ? "mps" : "another device";
}

[[gnu::noinline]] inline const char* dtype_name(AtenTensorHandle tensor) {
    int32_t dtype;
    check_shim(aoti_torch_get_dtype(tensor, &dtype), "the dtype");
    // Static: torch is asked for these numbers once, and not for each tensor.
    static const std::pair<int32_t, const char*> names[] = {
        {aoti_torch_dtype_float32(), "float32"},
        {aoti_torch_dtype_bfloat16(), "bfloat16"},
        {aoti_torch_dtype_float16(), "float16"},
        {aoti_torch_dtype_float64(), "float64"},
        {aoti_torch_dtype_int64(), "int64"},
        {aoti_torch_dtype_int32(), "int32"},
        {aoti_torch_dtype_int16(), "int16"},
        {aoti_torch_dtype_int8(), "int8"},
        {aoti_torch_dtype_uint8(), "uint8"},
        {aoti_torch_dtype_bool(), "bool"},
        {aoti_torch_dtype_complex64(), "complex64"},
        {aoti_torch_dtype_complex128(), "complex128"},
        {aoti_torch_dtype_float8_e4m3fn(), "float8_e4m3fn"},
        {aoti_torch_dtype_float8_e5m2(), "float8_e5m2"},
    };
    for (const auto& [number, name] : names) {
        if (dtype == number) return name;
    }
    return "of another dtype";
}

[[gnu::noinline]] inline Operand operand(AtenTensorHandle tensor, bool written) {
    Operand out{};
    out.dtype = dtype_name(tensor);
    out.device = device_name(tensor);
    int32_t layout;
    int64_t *sizes, *strides = nullptr;
    check_shim(aoti_torch_get_layout(tensor, &layout), "the layout");
    check_shim(aoti_torch_get_dim(tensor, &out.dim), "the dimensions");
    check_shim(aoti_torch_get_numel(tensor, &out.numel), "the size");
    check_shim(aoti_torch_get_sizes(tensor, &sizes), "the sizes");
    out.sizes = sizes;
    static const int32_t kStrided = aoti_torch_layout_strided();
    out.strided = layout == kStrided;
    if (!out.strided) return out;
    check_shim(aoti_torch_is_contiguous(tensor, &out.contiguous), "the layout");
    check_shim(aoti_torch_get_strides(tensor, &strides), "the strides");
    out.strides = strides;
    // A const pointer keeps a copy-on-write tensor shared; a mutable pointer copies it.
    const void* data = nullptr;
    check_shim(written ? torch_get_mutable_data_ptr(tensor, &out.data) : torch_get_const_data_ptr(tensor, &data),
               "the data");
    if (!written) out.data = const_cast<void*>(data);
    return out;
}

// For the Meta kernels of ops that name no tensor. torch calls them if one tensor of several is on the device meta.
[[gnu::noinline]] inline void check_all_meta(const std::vector<AtenTensorHandle>& tensors) {
    for (const AtenTensorHandle tensor : tensors) {
        const char* device = device_name(tensor);
        if (!equal(device, "meta"))
            refuse({"tensors are on ", device, " and meta, expected one device: move them with .to()"});
    }
}

// Returns the value in a slot of the stack, of a type that torch keeps there as it is.
template <typename T>
T value_in(StableIValue slot) {
    T value;
    std::memcpy(&value, &slot, sizeof value);
    return value;
}

// Reads the stack of one call from the first argument to the last, and owns the tensors that it has read.
class Arguments {
public:
    explicit Arguments(const StableIValue* stack) : next_(stack) {}
    Arguments(const Arguments&) = delete;
    Arguments& operator=(const Arguments&) = delete;
    [[gnu::noinline]] ~Arguments() {
        for (const AtenTensorHandle tensor : tensors_) aoti_torch_delete_tensor_object(tensor);
    }

    int64_t integer() { return value_in<int64_t>(*next_++); }
    double real() { return value_in<double>(*next_++); }
    bool flag() { return value_in<bool>(*next_++); }

    // Reads the next arguments, one tensor for each name.
    [[gnu::noinline]] void tensors(Names names) {
        tensors_.reserve(names.count);
        lengths_.reserve(names.count);
        for (size_t i = 0; i < names.count; ++i) tensor();
    }
    [[gnu::noinline]] void tensor_lists(Names names) {
        for (size_t i = 0; i < names.count; ++i) tensor_list();
    }

    // Read the next argument: a tensor, a list of tensors, or an optional tensor (None reads no tensor).
    [[gnu::noinline]] void tensor() {
        tensors_.push_back(value_in<AtenTensorHandle>(*next_++));
        lengths_.push_back(1);
    }
    [[gnu::noinline]] void optional_tensor() {
        const auto slot = value_in<StableIValue*>(*next_++);  // owned; null for None
        lengths_.push_back(slot ? 1 : 0);
        if (!slot) return;
        const StableIValue tensor = *slot;
        delete slot;
        tensors_.push_back(value_in<AtenTensorHandle>(tensor));
    }
    [[gnu::noinline]] void tensor_list() {
        const auto list = value_in<StableListHandle>(*next_++);
        size_t length = 0;
        AOTITorchError code = torch_list_size(list, &length);
        tensors_.reserve(tensors_.size() + length);
        for (size_t i = 0; i < length && code == AOTI_TORCH_SUCCESS; ++i) {
            StableIValue item;
            code = torch_list_get_item(list, i, &item);
            if (code == AOTI_TORCH_SUCCESS) tensors_.push_back(value_in<AtenTensorHandle>(item));
        }
        torch_delete_list(list);
        check_shim(code, "an item of a list");
        lengths_.push_back(length);
    }

    // All tensors that were read, in the order of the arguments, and the number of tensors of each argument.
    const std::vector<AtenTensorHandle>& handles() const { return tensors_; }
    const std::vector<size_t>& lengths() const { return lengths_; }

    // Calls visit(tensor, argument, index) for each tensor that was read, one parameter after the other. `index` is -1
    // for tensors that are not in a list.
    template <typename Visit>
    void each(Names names, bool lists, const Visit& visit) const {
        for (size_t i = 0; i < lengths_.size(); ++i) check_length(names[i], lengths_[i], lengths_[0]);
        for (size_t index = 0; index < lengths_[0]; ++index) {
            for (size_t i = 0; i < lengths_.size(); ++i) {
                visit(tensors_[i * lengths_[0] + index], i, lists ? static_cast<int64_t>(index) : -1);
            }
        }
    }

    // Returns the tensors that were read, checked: one tensor for each name, or one list for each name.
    [[gnu::noinline]] std::vector<TensorGroup> groups(Names names, bool lists) const {
        std::vector<TensorGroup> out;
        out.reserve(lengths_[0]);
        Operand operands[kMaxTensors];
        each(names, lists, [&](AtenTensorHandle tensor, size_t i, int64_t index) {
            check_device(device_name(tensor), "cpu", names[i], index);
            operands[i] = operand(tensor, i != kGradient);
            if (i + 1 == names.count) out.push_back(checked_group(operands, names, index));
        });
        return out;
    }

    // For the Meta kernels, which torch.compile runs with symbolic shapes: checks only the device.
    [[gnu::noinline]] void check_meta(Names names, bool lists) const {
        each(names, lists, [&](AtenTensorHandle tensor, size_t i, int64_t index) {
            check_device(device_name(tensor), "meta", names[i], index);
        });
    }

private:
    const StableIValue* next_;
    std::vector<AtenTensorHandle> tensors_;  // one list after the other
    std::vector<size_t> lengths_;
};

// Runs `part` on torch's threads, so that torch.set_num_threads applies to the kernels too.
inline void parallel_for(int64_t total, int64_t grain, void (*part)(int64_t, int64_t, void*), void* context) {
    if (torch_parallel_for(0, total, grain, part, context) != AOTI_TORCH_SUCCESS) {
        refuse({"torch's threads could not run the update"});
    }
}

inline TensorGroups on_threads(const std::vector<TensorGroup>& groups) {
    return {groups.data(), static_cast<int64_t>(groups.size()), nullptr, {nullptr, &parallel_for}};
}

// The Meta kernels: of functions with tensors after `before` other arguments, and of functions with lists. `names` are
// the names of the op's tensors.
template <const auto& names, size_t before>
void tensors_meta(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack + before);
    arguments.tensors(names);
    arguments.check_meta(names, false);
}

template <const auto& names>
void lists_meta(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    arguments.tensor_lists(names);
    arguments.check_meta(names, true);
}

}  // namespace opforge::cpu
