#include "elementwise.h"
#include "formulas.h"
#include "lion.h"

namespace opforge::cpu {
namespace {

// -1, 0 or 1. NaN stays NaN: as 0 it would freeze the parameter without a word.
inline Vec sign(Vec x) {
    const Vec one = bit_or(bit_and(x, set_bits(0x80000000u)), set1(1.0f));
    return select_nan(x, x, select_zero(x, x, one));
}

// Algorithm 2 of Lion (arXiv:2302.06675).
template <typename P, typename G, typename S>
void lion(const void* scalars, void* const* data, int64_t begin, int64_t end) {
    const LionScalars s = *static_cast<const LionScalars*>(scalars);
    update<P, G, S>(&lion<P, G, S>, scalars, data, begin, end, [&](P* params, G* grads, S* exp_avg) {
        const Vec g = negate_if(s.maximize, load(grads));
        const Vec m = load(exp_avg);
        store(exp_avg, average(s.momentum, m, g));
        store(params, descend(s.decay, load(params), set1(s.rate) * sign(average(s.direction, m, g))));
    });
}

}  // namespace

Kernel lion_kernel(DType params, DType grads, DType states) {
    return with_dtype(params, [=](auto p) {
        return with_dtype(grads, [=](auto g) {
            return with_state_dtype(states, [=](auto s) -> Kernel {
                return &lion<typename decltype(p)::type, typename decltype(g)::type, typename decltype(s)::type>;
            });
        });
    });
}

}  // namespace opforge::cpu
