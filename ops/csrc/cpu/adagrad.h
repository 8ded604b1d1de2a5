#pragma once

#include <opforge/dtype.h>
#include "kernel.h"

namespace opforge::cpu {

struct AdagradScalars {
    float rate;  // the learning rate of this step
    float eps;
    float l2;  // weight decay, through the gradient
    bool maximize;
};

// For data = {params, grads, sum of squares}.
Kernel adagrad_kernel(DType params, DType grads, DType states);

}  // namespace opforge::cpu
