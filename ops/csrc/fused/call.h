#pragma once

// One call of a multi-tensor op: reads its tensors from the dispatcher's stack, and checks all before any is changed.

#include <opforge/rules.h>

#include <memory>

#include "current_device.h"

namespace opforge::fused {

// Returns the address of a 32-bit number on the device, which kernels read; checks its tensor.
inline const void* number(AtenTensorHandle tensor, const char* name, const char* dtypes, int32_t index) {
    check_same_device(tensor, name, -1, index, "noop_flag");
    int64_t numel;
    int32_t dtype;
    check_shim(aoti_torch_get_numel(tensor, &numel), "the size");
    check_shim(aoti_torch_get_dtype(tensor, &dtype), "the dtype");
    const bool is_int = dtype == aoti_torch_dtype_int32();
    if (numel != 1 || !(dtype == aoti_torch_dtype_float32() || (is_int && dtypes[0] == 'i'))) {
        refuse({name, " has ", numel, " elements and is ", dtype_name(tensor), ", expected one of ", dtypes,
                ": make it with torch.tensor"});
    }
    const void* data;
    check_shim(torch_get_const_data_ptr(tensor, &data), "the data");
    return data;
}

// The stack holds noop_flag, then a list for each of `names` (params, grads, states, copies; copies may be empty), then
// lr_tensor, step_tensor and grad_scale, each a tensor or None.
class Call {
public:
    Call(const StableIValue* stack, Names names) : names_(names), noop_(new Arguments(stack)) {
        noop_->tensor();
        for (size_t i = 0; i < names.count; ++i) {
            lists_.emplace_back(new Arguments(stack + 1 + i));
            lists_.back()->tensor_list();
        }
        for (size_t i = 0; i < kNumbers; ++i) {
            numbers_.emplace_back(new Arguments(stack + 1 + names.count + i));
            numbers_.back()->optional_tensor();
        }
        const size_t copies = lists_.back()->handles().size();
        used_ = copies == 0 ? names.count - 1 : names.count;
        for (size_t i = 1; i < used_; ++i) check_length(names[i], list(i).size(), count());
    }

    size_t count() const { return list(0).size(); }
    static size_t arguments(Names names) { return 1 + names.count + kNumbers; }
    AtenTensorHandle noop() const { return noop_->handles()[0]; }
    int32_t index() const { return device_index(noop()); }

    // Reads and checks all tensors. The result points into this object.
    [[gnu::noinline]] TensorGroups groups(const Executor& executor) {
        const void* flag = number(noop(), "noop_flag", "int32 or float32", index());
        const int32_t device = index();
        groups_.resize(count());
        for (size_t at = 0; at < count(); ++at) read(at, device);
        return {groups_.data(), static_cast<int64_t>(count()), flag, executor};
    }

    DeviceNumbers device_numbers() const {
        const auto at = [&](size_t i, const char* name) -> const float* {
            const auto& handles = numbers_[i]->handles();
            return handles.empty() ? nullptr : static_cast<const float*>(number(handles[0], name, "float32", index()));
        };
        return {at(0, "lr_tensor"), at(1, "step_tensor"), at(2, "grad_scale")};
    }

    // For the Meta kernels, which get symbolic shapes: checks only the devices.
    [[gnu::noinline]] void check_meta() const {
        check_device(device_name(noop()), "meta", "noop_flag", -1);
        for (size_t i = 0; i < used_; ++i) {
            for (size_t at = 0; at < count(); ++at) {
                check_device(device_name(list(i)[at]), "meta", names_[i], static_cast<int64_t>(at));
            }
        }
    }

private:
    static constexpr size_t kNumbers = 3;

    const std::vector<AtenTensorHandle>& list(size_t i) const { return lists_[i]->handles(); }

    void read(size_t at, int32_t device) {
        Operand operands[kMaxTensors];
        const auto position = static_cast<int64_t>(at);
        for (size_t i = 0; i < used_; ++i) {
            check_same_device(list(i)[at], names_[i], position, device, "noop_flag");
            operands[i] = operand(list(i)[at], i != kGradient);
        }
        check_layouts(operands, Names(names_.items, used_), position);
        TensorGroup& group = groups_[at];
        group = {};
        group.numel = operands[0].numel;
        for (size_t i = 0; i < used_; ++i) {
            const size_t slot = i + 1 == names_.count ? kMaxTensors - 1 : i;  // the copy is always in the last slot
            group.dtypes[slot] = check_dtype(operands[i], names_[i], position, true);
            group.data[slot] = operands[i].data;
        }
    }

    Names names_;
    size_t used_;  // the number of lists, without the list of copies if that is empty
    std::unique_ptr<Arguments> noop_;
    std::vector<std::unique_ptr<Arguments>> lists_, numbers_;
    std::vector<TensorGroup> groups_;
};

}  // namespace opforge::fused
