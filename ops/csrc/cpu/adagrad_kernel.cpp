#include "adagrad.h"
#include "elementwise.h"
#include "formulas.h"

namespace opforge::cpu {
namespace {

// Diagonal Adagrad (jmlr.org/papers/v12/duchi11a.html), eps outside the root as in torch.optim.Adagrad.
template <typename P, typename G, typename S>
void adagrad(const void* scalars, void* const* data, int64_t begin, int64_t end) {
    const AdagradScalars s = *static_cast<const AdagradScalars*>(scalars);
    update<P, G, S>(&adagrad<P, G, S>, scalars, data, begin, end, [&](P* params, G* grads, S* sums) {
        const Vec p = load(params);
        const Vec g = gradient(load(grads), p, s.l2, s.maximize);
        const Vec sum = fma(g, g, load(sums));
        store(sums, sum);
        store(params, p - set1(s.rate) * g / (sqrt(sum) + set1(s.eps)));
    });
}

}  // namespace

Kernel adagrad_kernel(DType params, DType grads, DType states) {
    return with_dtype(params, [=](auto p) {
        return with_dtype(grads, [=](auto g) {
            return with_state_dtype(states, [=](auto s) -> Kernel {
                return &adagrad<typename decltype(p)::type, typename decltype(g)::type, typename decltype(s)::type>;
            });
        });
    });
}

}  // namespace opforge::cpu
