#pragma once

#include <opforge/dtype.h>
#include <opforge/moment.h>
#include "kernel.h"

namespace opforge::cpu {

// What one Adam step needs, from double arithmetic done once a call.
struct AdamScalars {
    Moment first;          // beta1
    Moment second;         // beta2
    DecoupledDecay decay;  // zero when weight decay goes through the gradient
    float l2;              // weight decay that goes through the gradient, else zero
    float rate;            // lr * sqrt(1 - beta2^t) / (1 - beta1^t)
    float eps;             // eps * sqrt(1 - beta2^t)
    bool maximize;
};

struct AdamRollbackScalars {
    AdamScalars step;   // the step that is undone
    float undo_first;   // 1 / beta1
    float undo_second;  // 1 / beta2
    float undo_decay;   // 1 / (1 - lr * weight_decay)
    DType params, grads, states;
};

// Both take data = {params, grads, exp_avg, exp_avg_sq}, the two states of one dtype.
Kernel adam_kernel(DType params, DType grads, DType states);
void adam_rollback(const void* scalars, void* const* data, int64_t begin, int64_t end);

}  // namespace opforge::cpu
