#pragma once

#include <limits>

namespace opforge {

constexpr float kLargestFloat = std::numeric_limits<float>::max();

// The weights of a running average, beta * x + (1 - beta) * y. For beta over 1/2 it is x + (1 - beta) * (y - x):
// float(1 - beta) has a smaller error than float(beta), whose error would act as an additional decay of x in every
// step.
struct Moment {
    float weight;  // 1 - beta
    float factor;  // of x in the correction of an average of squares: beta - 1 if x is added, otherwise beta
    float step;    // of y - x: 1 - beta from x on, or -beta from y on
    bool add;      // beta > 1/2
    float bound;   // of x in the correction: the largest float if x is added, otherwise inf

    explicit Moment(double beta)
        : weight(static_cast<float>(1.0 - beta)),
          factor(static_cast<float>(beta > 0.5 ? beta - 1.0 : beta)),
          step(beta > 0.5 ? weight : -factor),
          add(beta > 0.5),
          bound(add ? kLargestFloat : std::numeric_limits<float>::infinity()) {}
};

}  // namespace opforge
