#pragma once

namespace opforge {

// The weights of a running average, beta * x + (1 - beta) * y, that is rounded once at the result's magnitude. For beta
// over 1/2 the form is x + ((1 - beta) * y - (1 - beta) * x): float(1 - beta) has a smaller error than float(beta),
// whose error would act as an additional decay of x in every step.
struct Moment {
    float weight;  // 1 - beta
    float factor;  // of x in the correction: beta - 1 if x is added, otherwise beta
    bool add;      // beta > 1/2

    explicit Moment(double beta)
        : weight(static_cast<float>(1.0 - beta)),
          factor(static_cast<float>(beta > 0.5 ? beta - 1.0 : beta)),
          add(beta > 0.5) {}
};

// Decoupled weight decay. The usual factor alone has an error of up to half a unit in the last place of 1, which would
// be a bias in every step.
struct DecoupledDecay {
    float amount;  // lr * weight_decay
    float factor;  // 1 - lr * weight_decay

    explicit DecoupledDecay(double product)
        : amount(static_cast<float>(product)), factor(static_cast<float>(1.0 - product)) {}
};

}  // namespace opforge
