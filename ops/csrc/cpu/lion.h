#pragma once

#include <opforge/dtype.h>
#include <opforge/moment.h>
#include "kernel.h"

namespace opforge::cpu {

struct LionScalars {
    Moment direction;  // beta1: of the step's sign
    Moment momentum;   // beta2: of what is kept
    DecoupledDecay decay;
    float rate;  // the learning rate
    bool maximize;
};

// For data = {params, grads, exp_avg}.
Kernel lion_kernel(DType params, DType grads, DType states);

}  // namespace opforge::cpu
