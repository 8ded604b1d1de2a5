// torch::special: torch's operators special_NAME.
#pragma once
#include "operators.h"

namespace torch {
inline namespace opforge_facade {
namespace special {
#define OPFORGE_SPECIAL(NAME)                                           \
    template <class... A>                                               \
    decltype(auto) NAME(A&&... arguments) {                             \
        return at::special_##NAME(std::forward<A>(arguments)...);       \
    }                                                                   \
    template <class... A>                                               \
    decltype(auto) NAME##_out(A&&... arguments) {                       \
        return at::special_##NAME##_out(std::forward<A>(arguments)...); \
    }
OPFORGE_SPECIAL(gammaln)
OPFORGE_SPECIAL(gammainc)
OPFORGE_SPECIAL(gammaincc)
OPFORGE_SPECIAL(multigammaln)
OPFORGE_SPECIAL(polygamma)
OPFORGE_SPECIAL(psi)
OPFORGE_SPECIAL(digamma)
OPFORGE_SPECIAL(entr)
OPFORGE_SPECIAL(erf)
OPFORGE_SPECIAL(erfc)
OPFORGE_SPECIAL(erfcx)
OPFORGE_SPECIAL(erfinv)
OPFORGE_SPECIAL(ndtri)
OPFORGE_SPECIAL(log_ndtr)
OPFORGE_SPECIAL(logit)
OPFORGE_SPECIAL(expit)
OPFORGE_SPECIAL(exp2)
OPFORGE_SPECIAL(expm1)
OPFORGE_SPECIAL(xlogy)
OPFORGE_SPECIAL(xlog1py)
OPFORGE_SPECIAL(zeta)
OPFORGE_SPECIAL(i0)
OPFORGE_SPECIAL(i0e)
OPFORGE_SPECIAL(i1)
OPFORGE_SPECIAL(i1e)
OPFORGE_SPECIAL(ndtr)
OPFORGE_SPECIAL(sinc)
OPFORGE_SPECIAL(round)
OPFORGE_SPECIAL(log1p)
OPFORGE_SPECIAL(bessel_j0)
OPFORGE_SPECIAL(bessel_j1)
OPFORGE_SPECIAL(bessel_y0)
OPFORGE_SPECIAL(bessel_y1)
OPFORGE_SPECIAL(modified_bessel_i0)
OPFORGE_SPECIAL(modified_bessel_i1)
OPFORGE_SPECIAL(modified_bessel_k0)
OPFORGE_SPECIAL(modified_bessel_k1)
#undef OPFORGE_SPECIAL
OPFORGE_IF_USED
at::Tensor logsumexp(const at::Tensor& x, at::IntArrayRef dims, bool keepdim) {
    return at::special_logsumexp(x, dims, keepdim);
}
OPFORGE_IF_USED
at::Tensor softmax(const at::Tensor& x, int64_t dim, std::optional<at::ScalarType> dtype) {
    return at::special_softmax(x, dim, dtype);
}
OPFORGE_IF_USED
at::Tensor log_softmax(const at::Tensor& x, int64_t dim, std::optional<at::ScalarType> dtype) {
    return at::special_log_softmax(x, dim, dtype);
}
}  // namespace special
}  // namespace opforge_facade
}  // namespace torch
