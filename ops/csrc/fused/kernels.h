#pragma once

// What each device implements, without torch: in ops/csrc/cuda for GPUs, in ops/csrc/cpu for the host. Each function
// gives null, or why its kernel did not start.

#include <opforge/multi_tensor.h>
#include <opforge/rules.h>

namespace opforge {

const char* launch_adam(const TensorGroups& groups, const AdamNumbers& numbers);
const char* launch_lion(const TensorGroups& groups, const LionNumbers& numbers);

// How many floats launch_lamb needs as its workspace, on the device.
int64_t lamb_workspace(const TensorGroups& groups);

// Writes each parameter's ratio of norms to `ratios`.
const char* launch_lamb(const TensorGroups& groups, const LambNumbers& numbers, float* ratios, float* workspace);

// The host alone has these.
const char* launch_adam_rollback(const TensorGroups& groups, const AdamRollbackRule& rule);
const char* launch_adagrad(const TensorGroups& groups, const AdagradRule& rule);

}  // namespace opforge
