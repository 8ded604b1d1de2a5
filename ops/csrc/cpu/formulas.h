#pragma once

#include <opforge/moment.h>
#include "vec.h"

namespace opforge::cpu {

// The average of values: inf - inf is NaN once x is inf, as in torch.lerp.
inline Vec average(const Moment& moment, Vec x, Vec y) {
    return keep_if(moment.add, x) + fma(set1(moment.weight), y, set1(moment.factor) * x);
}

// The average of squares: inf stays inf, as in torch's x * beta + (1 - beta) * y * y. The weight goes into the product
// first, so that it overflows where torch's does.
inline Vec average_square(const Moment& moment, Vec x, Vec y) {
    const Vec base = keep_if(moment.add, x);
    const Vec decay = select_inf(base, set1(0.0f), set1(moment.factor) * x);
    return base + fma(set1(moment.weight) * y, y, decay);
}

// Weight decay and a step at once: p - lr * weight_decay * p - step, rounded once at the magnitude of p.
inline Vec descend(const DecoupledDecay& decay, Vec p, Vec step) {
    const Vec change = fma(set1(decay.amount), p, step);
    // inf less a part of itself would be NaN; scaled, it stays inf, as it does in torch.
    return select_inf(p, set1(decay.factor) * p - step, p - change);
}

// The gradient with its sign for the objective, and with weight decay in it where l2 is not zero.
inline Vec gradient(Vec g, Vec p, float l2, bool maximize) {
    return fma(set1(l2), keep_if(l2 != 0.0f, p), negate_if(maximize, g));
}

}  // namespace opforge::cpu
