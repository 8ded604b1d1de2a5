#include <opforge/stable_blocks.h>

#include <cmath>

#include "../fused/call.h"
#include "../fused/kernels.h"

namespace opforge::fused {
namespace {

constexpr const char* kLists[] = {"params", "grads", "exp_avgs", "exp_avg_sqs", "copies"};
constexpr const char* kRatios[] = {"ratios"};

LambNumbers read_numbers(Arguments& arguments, const DeviceNumbers& device) {
    double lr, beta1, beta2, largest, smallest, eps, factor, weight_decay;
    for (double* number : {&lr, &beta1, &beta2, &largest, &smallest, &eps, &factor}) *number = arguments.real();
    const int64_t step = arguments.integer();
    const bool eps_inside = arguments.flag();
    const bool corrects_bias = arguments.flag();
    weight_decay = arguments.real();
    const bool maximize = arguments.flag();
    if (!device.step) check_step(step);
    const BiasCorrection correction(static_cast<double>(step), beta1, beta2, corrects_bias);
    const LambRule fixed{Moment(beta1),
                         Moment(beta2),
                         static_cast<float>(weight_decay),
                         static_cast<float>(lr * correction.second_root / correction.first),
                         static_cast<float>(eps),
                         static_cast<float>(1.0 / factor),
                         static_cast<float>(smallest),
                         static_cast<float>(largest),
                         eps_inside,
                         maximize};
    return {fixed,
            device,
            static_cast<float>(lr),
            static_cast<float>(step),
            static_cast<float>(std::log(beta1)),
            static_cast<float>(std::log(beta2)),
            corrects_bias};
}

// Memory of the current device for the lifetime of this object. Only later work on the same stream reuses freed memory,
// so running kernels keep theirs.
class Workspace {
public:
    Workspace(AtenTensorHandle like, int64_t floats) {
        int32_t device;
        const int64_t stride = 1;
        check_shim(aoti_torch_get_device_type(like, &device), "the device");
        check_shim(aoti_torch_empty_strided(1, &floats, &stride, aoti_torch_dtype_float32(), device, device_index(like),
                                            &tensor_),
                   "the memory for the sums");
        check_shim(torch_get_mutable_data_ptr(tensor_, &data_), "the data");
    }
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    ~Workspace() { aoti_torch_delete_tensor_object(tensor_); }

    float* data() const { return static_cast<float*>(data_); }

private:
    AtenTensorHandle tensor_ = nullptr;
    void* data_ = nullptr;
};

void fused_lamb(StableIValue* stack, uint64_t, uint64_t) {
    Call call(stack, kLists);
    Arguments arguments(stack + Call::arguments(kLists));
    arguments.tensors(kRatios);
    if (call.count() == 0) return;
    const DeviceGuard guard(call.noop(), "noop_flag");
    const TensorGroups groups = call.groups(guard.executor());
    const AtenTensorHandle ratios_tensor = arguments.handles()[0];
    check_same_device(ratios_tensor, "ratios", -1, call.index(), "noop_flag");
    const Operand ratios = operand(ratios_tensor, true);
    if (!ratios.strided || !ratios.contiguous || ratios.numel != groups.count || !equal(ratios.dtype, "float32")) {
        refuse({"ratios has ", ratios.numel, " elements and is ", ratios.dtype,
                ", expected a contiguous float32 tensor of ", groups.count, ": one element for each parameter"});
    }
    const LambNumbers numbers = read_numbers(arguments, call.device_numbers());
    const Workspace workspace(call.noop(), lamb_workspace(groups));
    check_launch("fused_lamb_", launch_lamb(groups, numbers, static_cast<float*>(ratios.data), workspace.data()));
}

void fused_lamb_meta(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack + Call::arguments(kLists));
    arguments.tensors(kRatios);
    Call(stack, kLists).check_meta();
}

}  // namespace
}  // namespace opforge::fused

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def(
        "fused_lamb_(Tensor noop_flag, Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] "
        "exp_avg_sqs, Tensor(d!)[] copies, *, Tensor? lr_tensor=None, Tensor? step_tensor=None, Tensor? "
        "grad_scale=None, Tensor(e!) ratios, float lr, float beta1, float beta2, float max_coeff, float min_coeff, "
        "float eps, float scale, int step, bool eps_inside_sqrt, bool bias_correction, float weight_decay, bool "
        "maximize=False) -> ()");
}

// For every backend: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("fused_lamb_", OPFORGE_BOXED(&opforge::fused::fused_lamb));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) { m.impl("fused_lamb_", OPFORGE_BOXED(&opforge::fused::fused_lamb_meta)); }
