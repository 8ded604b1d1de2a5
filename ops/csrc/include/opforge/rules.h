#pragma once

// The optimizers' rules, for GPU and CPU kernels: F is a float on a GPU, and a vector of floats (cpu/vec.h) on the CPU.
// `x` holds the parameter, its gradient and its states, in this order; the rule replaces all but the gradient.

#include <opforge/c_math.h>
#include <opforge/element.h>
#include <opforge/moment.h>

namespace opforge {

// The operations that the rules use, for one float; vec.h has them for a vector.
OPFORGE_HD inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
OPFORGE_HD inline float sqrt(float x) { return sqrtf(x); }
// `flag ? x : 0` and `flag ? -x : x` for a mode of the whole call. They work on bits: in a product with zero, an inf
// that the mode ignores would become NaN.
OPFORGE_HD inline float keep_if(bool flag, float x) { return of_bits(to_bits(x) & (flag ? 0xffffffffu : 0u)); }
OPFORGE_HD inline float negate_if(bool flag, float x) { return of_bits(to_bits(x) ^ (flag ? 0x80000000u : 0u)); }
OPFORGE_HD inline float choose(bool flag, float then, float otherwise) { return flag ? then : otherwise; }
// `b` if either is NaN.
OPFORGE_HD inline float smaller(float a, float b) { return a < b ? a : b; }
// The nearest finite number; of NaN any.
OPFORGE_HD inline float bounded(float x) { return fminf(fmaxf(x, -kLargestFloat), kLargestFloat); }
// `flag ? x + y : y`.
OPFORGE_HD inline float add_if(bool flag, float x, float y) { return keep_if(flag, x) + y; }
// `flag ? a * b + c : c`.
OPFORGE_HD inline float fma_if(bool flag, float a, float b, float c) { return flag ? fma(a, b, c) : c; }
// Returns a number with x's sign, and 0 for 0. NaN stays NaN, since 0 would silently freeze the parameter.
OPFORGE_HD inline float times_sign(float number, float x) { return x == 0.0f || is_nan(x) ? x : copysignf(number, x); }

// Returns the average of values, beta * x + (1 - beta) * y, as torch.lerp does: from the nearer of them. If x is inf,
// it is inf - inf, NaN.
template <typename F>
OPFORGE_HD F average(const Moment& moment, F x, F y) {
    return fma(F(moment.step), y - x, choose(moment.add, x, y));
}

// Returns the average of squares. inf stays inf, as in torch's x * beta + (1 - beta) * y * y: the correction that is
// added to it is finite. The weight is multiplied first, so that the product overflows when torch's does.
template <typename F>
OPFORGE_HD F average_square(const Moment& moment, F x, F y) {
    const F old = smaller(F(moment.bound), x);
    return add_if(moment.add, x, fma(F(moment.weight) * y, y, F(moment.factor) * old));
}

// Returns p - lr * weight_decay * p - step, rounded once at the magnitude of p. An inf stays inf, as in torch: a finite
// number is subtracted from it.
template <typename F>
OPFORGE_HD F descend(float decay, F p, F step) {
    return p - fma(F(decay), bounded(p), step);
}

// Returns the gradient times a factor, which has the sign of the objective, and with weight decay if l2 is not zero.
template <typename F>
OPFORGE_HD F gradient(F g, F p, float factor, float l2) {
    return fma_if(l2 != 0.0f, F(l2), p, g * F(factor));
}

// Addresses of a step's numbers on the device, whose changes a captured graph sees; null if the call passes the number.
struct DeviceNumbers {
    const float* lr;
    const float* step;
    const float* grad_scale;  // the factor that the gradients were multiplied by

    OPFORGE_HD float grad_factor(float factor) const { return grad_scale ? factor / *grad_scale : factor; }
};

// Returns 1 - beta^t for t steps, without cancellation.
OPFORGE_HD inline float bias_correction(float log_beta, float t) { return -expm1f(t * log_beta); }

// The rates of a step of Adam or LAMB; reads numbers on the device there.
struct DeviceRate {
    float lr, root, rate;  // sqrt(1 - beta2^t); lr * root / (1 - beta1^t)

    // `numbers` has lr, step and the logarithms of the betas, used unless the number is on the device.
    template <typename Numbers>
    OPFORGE_HD explicit DeviceRate(const Numbers& numbers)
        : lr(numbers.device.lr ? *numbers.device.lr : numbers.lr), root(1.0f), rate(lr) {
        if (!numbers.corrects_bias) return;
        const float t = numbers.device.step ? *numbers.device.step : numbers.step;
        root = sqrtf(bias_correction(numbers.log_beta2, t));
        rate = lr * root / bias_correction(numbers.log_beta1, t);
    }
};

// The divisors that correct averages for their start at 0, after t steps, counted from 1. Without correction they
// are 1.
struct BiasCorrection {
    double first, second_root;  // 1 - beta1^t, sqrt(1 - beta2^t)

    BiasCorrection(double t, double beta1, double beta2, bool enabled)
        : first(enabled ? 1.0 - ::pow(beta1, t) : 1.0), second_root(enabled ? ::sqrt(1.0 - ::pow(beta2, t)) : 1.0) {}
};

// Adam (arXiv:1412.6980, algorithm 1, in the form of its section 2) and AdamW (arXiv:1711.05101, algorithm 2).
struct AdamRule {
    static constexpr int kStates = 2;

    Moment first, second;
    float decay;        // lr * weight_decay; zero if weight decay is added to the gradient
    float l2;           // weight decay that is added to the gradient, otherwise zero
    float rate;         // lr * sqrt(1 - beta2^t) / (1 - beta1^t)
    float eps;          // eps * sqrt(1 - beta2^t)
    float grad_factor;  // 1 / the factor that the gradients were multiplied by
    bool maximize;

    // Computed in double, once per call. The number of steps `t` is counted from 1.
    AdamRule(double lr, double beta1, double beta2, double eps_, double weight_decay, double t, bool adamw_mode,
             bool corrects_bias, bool maximize_)
        : first(beta1),
          second(beta2),
          decay(static_cast<float>(adamw_mode ? lr * weight_decay : 0.0)),
          l2(adamw_mode ? 0.0f : static_cast<float>(weight_decay)),
          grad_factor(1.0f),
          maximize(maximize_) {
        const BiasCorrection correction(t, beta1, beta2, corrects_bias);
        rate = static_cast<float>(lr * correction.second_root / correction.first);
        eps = static_cast<float>(eps_ * correction.second_root);
    }

    template <typename F>
    OPFORGE_HD void operator()(F* x) const {
        const F g = gradient(x[1], x[0], negate_if(maximize, grad_factor), l2);
        x[2] = average(first, x[2], g);
        x[3] = average_square(second, x[3], g);
        x[0] = descend(decay, x[0], F(rate) * x[2] / (sqrt(x[3]) + F(eps)));
    }
};

// What a kernel constructs its rule from. `fixed` is complete if no number is on the device.
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
        const DeviceRate now(*this);
        out.decay = adamw_mode ? now.lr * weight_decay : 0.0f;
        out.rate = now.rate;
        out.eps = eps * now.root;
        return out;
    }
};

// Solves a step for the state before it. If the gradient dominates, the second moment is a difference of nearly equal
// numbers; if rounding makes it negative, it is set to zero, so that the next step can take its square root.
struct AdamRollbackRule {
    static constexpr int kStates = 2;

    AdamRule step;      // the step that is undone
    float undo_first;   // 1 / beta1
    float undo_second;  // 1 / beta2
    float undo_decay;   // 1 / (1 - lr * weight_decay)

    template <typename F>
    void operator()(F* x) const {
        const F root = sqrt(x[3]) + F(step.eps);
        x[0] = (x[0] + F(step.rate) * x[2] / root) * F(undo_decay);
        const F g = gradient(x[1], x[0], negate_if(step.maximize, 1.0f), step.l2);
        const F square = (x[3] - F(step.second.weight) * g * g) * F(undo_second);
        x[2] = (x[2] - F(step.first.weight) * g) * F(undo_first);
        x[3] = select_negative(square, F(0.0f), square);
    }
};

// Diagonal Adagrad (jmlr.org/papers/v12/duchi11a.html), eps outside the root as in torch.optim.Adagrad.
struct AdagradRule {
    static constexpr int kStates = 1;

    float rate;  // the learning rate of this step
    float eps;
    float l2;  // weight decay that is added to the gradient
    bool maximize;

    template <typename F>
    void operator()(F* x) const {
        const F g = gradient(x[1], x[0], negate_if(maximize, 1.0f), l2);
        x[2] = fma(g, g, x[2]);
        x[0] = x[0] - F(rate) * g / (sqrt(x[2]) + F(eps));
    }
};

// Lion (arXiv:2302.06675, algorithm 2). If the direction is NaN, the parameter becomes NaN.
struct LionRule {
    static constexpr int kStates = 1;

    Moment direction, momentum;  // with beta1, for the step's sign; with beta2, the average that is kept
    float decay;                 // lr * weight_decay
    float rate;                  // the learning rate
    float grad_factor;
    bool maximize;

    LionRule(double lr, double beta1, double beta2, double weight_decay, bool maximize_)
        : direction(beta1),
          momentum(beta2),
          decay(static_cast<float>(lr * weight_decay)),
          rate(static_cast<float>(lr)),
          grad_factor(1.0f),
          maximize(maximize_) {}

    template <typename F>
    OPFORGE_HD void operator()(F* x) const {
        const F g = x[1] * F(negate_if(maximize, grad_factor));
        const F step = times_sign(F(rate), average(direction, x[2], g));
        x[2] = average(momentum, x[2], g);
        x[0] = descend(decay, x[0], step);
    }
};

// LionRule for its usual numbers, with the same results in a quarter fewer instructions: both betas over 1/2, so that
// both averages start from the old value, and a gradient without a factor.
struct UsualLionRule {
    static constexpr int kStates = 1;

    float direction, momentum;  // 1 - beta1, 1 - beta2
    float decay;
    float rate;

    static bool is_for(const LionRule& rule) {
        return rule.direction.add && rule.momentum.add && rule.grad_factor == 1.0f && !rule.maximize;
    }
    explicit UsualLionRule(const LionRule& rule)
        : direction(rule.direction.step), momentum(rule.momentum.step), decay(rule.decay), rate(rule.rate) {}

    template <typename F>
    void operator()(F* x) const {
        const F difference = x[1] - x[2];
        const F step = times_sign(F(rate), fma(F(direction), difference, x[2]));
        x[2] = fma(F(momentum), difference, x[2]);
        x[0] = descend(decay, x[0], step);
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
        out.decay = out.rate * weight_decay;
        return out;
    }
};

// LAMB (arXiv:1904.00962, algorithm 2) in DeepSpeed's form: bias correction scales the whole step instead of the
// moments, and the ratio of the norms is clamped. It needs two passes, since the second uses the norms.
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

    // Returns the step's direction. The moments in `x` are those after this step.
    template <typename F>
    OPFORGE_HD F direction(const F* x) const {
        const F root = sqrt(x[3] + F(keep_if(eps_inside, eps))) + F(keep_if(!eps_inside, eps));
        return fma(F(weight_decay), keep_if(weight_decay != 0.0f, x[0]), x[2] / root);
    }

    // The first pass: updates the moments and returns the direction.
    template <typename F>
    OPFORGE_HD F accumulate(F* x) const {
        const F g = negate_if(maximize, x[1] * F(grad_factor));
        x[2] = average(first, x[2], g);
        x[3] = average_square(second, x[3], g);
        return direction(x);
    }

    template <typename F>
    OPFORGE_HD void descend(F* x, float ratio) const {
        x[0] = fma(F(-(rate * ratio)), direction(x), x[0]);
    }

    // Returns the ratio for the sums of squares of the parameter and of its direction.
    OPFORGE_HD float ratio(double params, double directions) const {
        const float params_norm = static_cast<float>(::sqrt(params));
        const float direction_norm = static_cast<float>(::sqrt(directions));
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
        out.rate = DeviceRate(*this).rate;
        return out;
    }
};

}  // namespace opforge
