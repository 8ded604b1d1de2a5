#pragma once

// The optimizers' rules for one element, for host and device kernels alike. `x` holds the parameter, its gradient and
// its states, in this order; the rule replaces all but the gradient.

#include <cmath>

#include <opforge/element.h>
#include <opforge/moment.h>

namespace opforge {

// Elementwise `flag ? x : 0` and `flag ? -x : x` for a mode that holds for the whole call. In bits: a choice by such a
// flag keeps g++ from vectorizing a loop.
OPFORGE_HD inline float keep_if(bool flag, float x) { return of_bits(to_bits(x) & (flag ? 0xffffffffu : 0u)); }
OPFORGE_HD inline float negate_if(bool flag, float x) { return of_bits(to_bits(x) ^ (flag ? 0x80000000u : 0u)); }

// beta * x + (1 - beta) * y. inf - inf is NaN once x is inf, as in torch.lerp.
OPFORGE_HD inline float average(const Moment& moment, float x, float y) {
    return keep_if(moment.add, x) + fmaf(moment.weight, y, moment.factor * x);
}

// beta * x + (1 - beta) * y * y. inf stays inf; the product overflows where torch's does.
OPFORGE_HD inline float average_square(const Moment& moment, float x, float y) {
    const float base = keep_if(moment.add, x);
    const float decay = is_inf(base) ? 0.0f : moment.factor * x;
    return base + fmaf(moment.weight * y, y, decay);
}

// p - lr * weight_decay * p - step, rounded once at the magnitude of p. inf less a part of itself would be NaN; scaled,
// it stays inf, as it does in torch.
OPFORGE_HD inline float descend(const DecoupledDecay& decay, float p, float step) {
    return is_inf(p) ? decay.factor * p - step : p - fmaf(decay.amount, p, step);
}

// The gradient with its sign for the objective, and with weight decay in it where l2 is not zero.
OPFORGE_HD inline float gradient(float g, float p, float l2, bool maximize) {
    return fmaf(l2, keep_if(l2 != 0.0f, p), negate_if(maximize, g));
}

// Numbers of a step that may lie on the device, so that a captured graph sees them change; null: they do not.
struct DeviceNumbers {
    const float* lr;
    const float* step;
    const float* grad_scale;  // what the gradients were multiplied by

    OPFORGE_HD float grad_factor(float factor) const { return grad_scale ? factor / *grad_scale : factor; }
};

// 1 - beta^t for t steps, without the cancellation.
OPFORGE_HD inline float bias_correction(float log_beta, float t) { return -expm1f(t * log_beta); }

// Adam (arXiv:1412.6980, algorithm 1, in the form of its section 2) and AdamW (arXiv:1711.05101, algorithm 2).
struct AdamRule {
    static constexpr int kStates = 2;

    Moment first, second;
    DecoupledDecay decay;  // zero when weight decay goes through the gradient
    float l2;              // weight decay that goes through the gradient, else zero
    float rate;            // lr * sqrt(1 - beta2^t) / (1 - beta1^t)
    float eps;             // eps * sqrt(1 - beta2^t)
    float grad_factor;
    bool maximize;

    OPFORGE_HD void operator()(float* x) const {
        const float p = x[0];
        const float g = gradient(x[1] * grad_factor, p, l2, maximize);
        x[2] = average(first, x[2], g);
        x[3] = average_square(second, x[3], g);
        x[0] = descend(decay, p, rate * x[2] / (sqrtf(x[3]) + eps));
    }
};

// What a kernel makes its rule of. `fixed` is whole where no number is on the device.
struct AdamNumbers {
    using Rule = AdamRule;

    AdamRule fixed;
    DeviceNumbers device;
    float lr, step, eps, weight_decay, log_beta1, log_beta2;
    bool adamw_mode, corrects_bias;

    OPFORGE_HD AdamRule rule() const {
        AdamRule out = fixed;
        out.grad_factor = device.grad_factor(fixed.grad_factor);
        if (device.lr == nullptr && device.step == nullptr) return out;
        const float now = device.lr ? *device.lr : lr;
        const float t = device.step ? *device.step : step;
        const float correction1 = corrects_bias ? bias_correction(log_beta1, t) : 1.0f;
        const float correction2 = corrects_bias ? sqrtf(bias_correction(log_beta2, t)) : 1.0f;
        out.decay.amount = adamw_mode ? now * weight_decay : 0.0f;
        out.decay.factor = 1.0f - out.decay.amount;
        out.rate = now * correction2 / correction1;
        out.eps = eps * correction2;
        return out;
    }
};

// Lion (arXiv:2302.06675, algorithm 2). A direction of NaN makes the parameter NaN.
struct LionRule {
    static constexpr int kStates = 1;

    Moment direction, momentum;
    DecoupledDecay decay;
    float rate;
    float grad_factor;
    bool maximize;

    OPFORGE_HD void operator()(float* x) const {
        const float g = gradient(x[1] * grad_factor, 0.0f, 0.0f, maximize);
        const float way = average(direction, x[2], g);
        x[2] = average(momentum, x[2], g);
        x[0] = descend(decay, x[0], way == 0.0f ? 0.0f : is_nan(way) ? way : copysignf(rate, way));
    }
};

struct LionNumbers {
    using Rule = LionRule;

    LionRule fixed;
    DeviceNumbers device;
    float weight_decay;

    OPFORGE_HD LionRule rule() const {
        LionRule out = fixed;
        out.grad_factor = device.grad_factor(fixed.grad_factor);
        if (device.lr == nullptr) return out;
        out.rate = *device.lr;
        out.decay.amount = out.rate * weight_decay;
        out.decay.factor = 1.0f - out.decay.amount;
        return out;
    }
};

// LAMB (arXiv:1904.00962, algorithm 2) as DeepSpeed words it: bias correction scales the whole step instead of the
// moments, and the ratio of the norms is held between two bounds. It takes two passes: the second needs the norms.
struct LambRule {
    static constexpr int kStates = 2;

    Moment first, second;
    float weight_decay;
    float rate;  // lr * sqrt(1 - beta2^t) / (1 - beta1^t)
    float eps;
    float grad_factor;
    float smallest, largest;  // bounds of the ratio
    bool eps_inside;          // of the square root
    bool maximize;

    // The step's direction. The moments in `x` are those of this step.
    OPFORGE_HD float direction(const float* x) const {
        const float root = sqrtf(x[3] + keep_if(eps_inside, eps)) + keep_if(!eps_inside, eps);
        return fmaf(weight_decay, keep_if(weight_decay != 0.0f, x[0]), x[2] / root);
    }

    // The first pass: updates the moments and gives the direction.
    OPFORGE_HD float accumulate(float* x) const {
        const float g = gradient(x[1] * grad_factor, 0.0f, 0.0f, maximize);
        x[2] = average(first, x[2], g);
        x[3] = average_square(second, x[3], g);
        return direction(x);
    }

    OPFORGE_HD void descend(float* x, float ratio) const { x[0] = fmaf(-(rate * ratio), direction(x), x[0]); }

    // From the sums of squares of the parameter and of its direction.
    OPFORGE_HD float ratio(double params, double directions) const {
        const float params_norm = static_cast<float>(sqrt(params));
        const float direction_norm = static_cast<float>(sqrt(directions));
        if (params_norm == 0.0f || direction_norm == 0.0f) return 1.0f;
        const float quotient = params_norm / direction_norm;
        return quotient > largest ? largest : quotient < smallest ? smallest : quotient;
    }
};

struct LambNumbers {
    using Rule = LambRule;

    LambRule fixed;
    DeviceNumbers device;
    float lr, step, log_beta1, log_beta2;
    bool corrects_bias;

    OPFORGE_HD LambRule rule() const {
        LambRule out = fixed;
        out.grad_factor = device.grad_factor(fixed.grad_factor);
        if (device.lr == nullptr && device.step == nullptr) return out;
        const float now = device.lr ? *device.lr : lr;
        const float t = device.step ? *device.step : step;
        const float correction1 = corrects_bias ? bias_correction(log_beta1, t) : 1.0f;
        const float correction2 = corrects_bias ? sqrtf(bias_correction(log_beta2, t)) : 1.0f;
        out.rate = now * correction2 / correction1;
        return out;
    }
};

}  // namespace opforge
