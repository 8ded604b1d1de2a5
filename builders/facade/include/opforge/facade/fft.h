// torch::fft: torch's operators fft_NAME.
#pragma once
#include "operators.h"

namespace torch {
inline namespace opforge_facade {
namespace fft {
using at::IntArrayRef;
using at::OptionalIntArrayRef;
using at::Tensor;
using Norm = std::optional<std::string_view>;
#define OPFORGE_FFT(NAME)                                                                                         \
    OPFORGE_IF_USED                                                                                               \
    Tensor NAME(const Tensor& x, std::optional<int64_t> n = std::nullopt, int64_t dim = -1, Norm norm = {}) {     \
        return at::fft_##NAME(x, n, dim, norm);                                                                   \
    }                                                                                                             \
    OPFORGE_IF_USED                                                                                               \
    Tensor NAME##2(const Tensor& x, OptionalIntArrayRef s = std::nullopt, IntArrayRef dim = {-2, -1},             \
                   Norm norm = {}) {                                                                              \
        return at::fft_##NAME##2(x, s, dim, norm);                                                                \
    }                                                                                                             \
    OPFORGE_IF_USED                                                                                               \
    Tensor NAME##n(const Tensor& x, OptionalIntArrayRef s = std::nullopt, OptionalIntArrayRef dim = std::nullopt, \
                   Norm norm = {}) {                                                                              \
        return at::fft_##NAME##n(x, s, dim, norm);                                                                \
    }
OPFORGE_FFT(fft)
OPFORGE_FFT(ifft)
OPFORGE_FFT(rfft)
OPFORGE_FFT(irfft)
OPFORGE_FFT(hfft)
OPFORGE_FFT(ihfft)
#undef OPFORGE_FFT
OPFORGE_IF_USED
Tensor fftfreq(int64_t n, double d, const at::TensorOptions& options = {}) { return at::fft_fftfreq(n, d, options); }
OPFORGE_IF_USED
Tensor fftfreq(int64_t n, const at::TensorOptions& options = {}) { return at::fft_fftfreq(n, 1.0, options); }
OPFORGE_IF_USED
Tensor rfftfreq(int64_t n, double d, const at::TensorOptions& options = {}) { return at::fft_rfftfreq(n, d, options); }
OPFORGE_IF_USED
Tensor rfftfreq(int64_t n, const at::TensorOptions& options = {}) { return at::fft_rfftfreq(n, 1.0, options); }
OPFORGE_IF_USED
Tensor fftshift(const Tensor& x, OptionalIntArrayRef dim = std::nullopt) { return at::fft_fftshift(x, dim); }
OPFORGE_IF_USED
Tensor ifftshift(const Tensor& x, OptionalIntArrayRef dim = std::nullopt) { return at::fft_ifftshift(x, dim); }
}  // namespace fft
}  // namespace opforge_facade
}  // namespace torch
