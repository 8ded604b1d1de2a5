#include "adam.h"
#include "elementwise.h"
#include "formulas.h"

namespace opforge::cpu {
namespace {

// Algorithm 1 of Adam (arXiv:1412.6980) and algorithm 2 of AdamW (arXiv:1711.05101), in the form of section 2 of the
// former: sqrt(1 - beta2^t) is taken out of the denominator, into the rate and eps.
template <typename P, typename G, typename S>
void adam(const void* scalars, void* const* data, int64_t begin, int64_t end) {
    const AdamScalars s = *static_cast<const AdamScalars*>(scalars);
    update<P, G, S, S>(&adam<P, G, S>, scalars, data, begin, end, [&](P* params, G* grads, S* exp_avg, S* exp_avg_sq) {
        const Vec p = load(params);
        const Vec g = gradient(load(grads), p, s.l2, s.maximize);
        const Vec m = average(s.first, load(exp_avg), g);
        const Vec v = average_square(s.second, load(exp_avg_sq), g);
        store(exp_avg, m);
        store(exp_avg_sq, v);
        store(params, descend(s.decay, p, set1(s.rate) * m / (sqrt(v) + set1(s.eps))));
    });
}

// Elements whose type is looked at for each vector: a rollback is rare, and one loop compiles faster than eighteen.
struct Elements {
    void* data;
    DType dtype;

    Vec at(int64_t i) const {
        return with_dtype(dtype, [&](auto t) { return load(static_cast<typename decltype(t)::type*>(data) + i); });
    }
    void put(int64_t i, Vec x) const {
        with_dtype(dtype, [&](auto t) { store(static_cast<typename decltype(t)::type*>(data) + i, x); });
    }
    size_t item_size() const { return dtype == DType::Float32 ? sizeof(float) : sizeof(uint16_t); }
};

}  // namespace

Kernel adam_kernel(DType params, DType grads, DType states) {
    return with_dtype(params, [=](auto p) {
        return with_dtype(grads, [=](auto g) {
            return with_state_dtype(states, [=](auto s) -> Kernel {
                return &adam<typename decltype(p)::type, typename decltype(g)::type, typename decltype(s)::type>;
            });
        });
    });
}

// A step solved for what it started from. The second moment is a difference of nearly equal numbers when the gradient
// dominates: where rounding makes it negative it is zero, so that the next step has a square root.
void adam_rollback(const void* scalars, void* const* data, int64_t begin, int64_t end) {
    const AdamRollbackScalars& s = *static_cast<const AdamRollbackScalars*>(scalars);
    const Elements params{data[0], s.params}, grads{data[1], s.grads};
    const Elements exp_avg{data[2], s.states}, exp_avg_sq{data[3], s.states};
    int64_t i = begin;
    for (; i + Vec::kWidth <= end; i += Vec::kWidth) {
        const Vec m = exp_avg.at(i);
        const Vec v = exp_avg_sq.at(i);
        const Vec p = (params.at(i) + set1(s.step.rate) * m / (sqrt(v) + set1(s.step.eps))) * set1(s.undo_decay);
        const Vec g = gradient(grads.at(i), p, s.step.l2, s.step.maximize);
        const Vec square = (v - set1(s.step.second.weight) * g * g) * set1(s.undo_second);
        params.put(i, p);
        exp_avg.put(i, (m - set1(s.step.first.weight) * g) * set1(s.undo_first));
        exp_avg_sq.put(i, select_negative(square, set1(0.0f), square));
    }
    if (i < end) {
        const size_t item_sizes[] = {params.item_size(), grads.item_size(), exp_avg.item_size(),
                                     exp_avg_sq.item_size()};
        update_tail(&adam_rollback, scalars, data, item_sizes, 4, i, end);
    }
}

}  // namespace opforge::cpu
