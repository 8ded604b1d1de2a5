#pragma once

// The functions that each device implements, without torch: an op's .cu files for GPUs, its _kernel.cpp for the CPU.
// Each returns null, or the reason why its kernel did not start.

#include <opforge/multi_tensor.h>
#include <opforge/rules.h>

namespace opforge {

const char* launch_adam(const TensorGroups& groups, const AdamNumbers& numbers);
const char* launch_lion(const TensorGroups& groups, const LionNumbers& numbers);

// Returns the number of floats that launch_lamb needs as its workspace on the device.
int64_t lamb_workspace(const TensorGroups& groups);

// Also writes each parameter's ratio of norms to `ratios`.
const char* launch_lamb(const TensorGroups& groups, const LambNumbers& numbers, float* ratios, float* workspace);

// Only the CPU has these.
const char* launch_adam_rollback(const TensorGroups& groups, const AdamRollbackRule& rule);
const char* launch_adagrad(const TensorGroups& groups, const AdagradRule& rule);

}  // namespace opforge
