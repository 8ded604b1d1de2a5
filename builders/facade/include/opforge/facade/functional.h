// torch::nn::functional, as far as it is operators behind options: what extensions call of torch's C++ frontend.
#pragma once
#include "factories.h"
#include "operators.h"

namespace torch {
inline namespace opforge_facade {

// A mode of torch::enumtype: its name is what the operators take.
struct Mode {
    const char* name;
};
constexpr Mode kConstant{"constant"}, kReflect{"reflect"}, kReplicate{"replicate"}, kCircular{"circular"},
    kNearest{"nearest"}, kNearestExact{"nearest-exact"}, kLinear{"linear"}, kBilinear{"bilinear"}, kBicubic{"bicubic"},
    kTrilinear{"trilinear"}, kZeros{"zeros"}, kBorder{"border"}, kReflection{"reflection"}, kNone{"none"},
    kMean{"mean"}, kSum{"sum"}, kSame{"same"}, kValid{"valid"};

// As many numbers as a function has dimensions: one is taken for all.
template <size_t D>
class ExpandingArray {
public:
    ExpandingArray(int64_t one) : values_(D, one) {}
    ExpandingArray(std::initializer_list<int64_t> list) : ExpandingArray(at::IntArrayRef(list)) {}
    ExpandingArray(at::IntArrayRef list) : values_(list.vec()) {
        if (values_.size() != D) {
            c10::facade::fail(c10::facade::text("Expected ", D, " values, but instead got ", values_.size()));
        }
    }
    ExpandingArray(const std::vector<int64_t>& list) : ExpandingArray(at::IntArrayRef(list)) {}
    operator at::IntArrayRef() const { return values_; }

private:
    std::vector<int64_t> values_;
};

namespace nn {
namespace functional {
using at::Tensor;

#define OPFORGE_OPTION(TYPE, NAME, ...)          \
    OPFORGE_IF_USED                              \
    auto NAME(const TYPE& value) -> Self& {      \
        NAME##_ = value;                         \
        return *this;                            \
    }                                            \
    const TYPE& NAME() const { return NAME##_; } \
    TYPE NAME##_ __VA_ARGS__;

struct PadFuncOptions {
    using Self = PadFuncOptions;
    PadFuncOptions(std::vector<int64_t> sides) : pad_(std::move(sides)) {}
    OPFORGE_OPTION(std::vector<int64_t>, pad)
    OPFORGE_OPTION(Mode, mode, = kConstant)
    OPFORGE_OPTION(double, value, = 0)
};
template <int Used = 0>
Tensor pad(const Tensor& x, const PadFuncOptions& o) {
    const bool is_constant = std::string_view(o.mode().name) == kConstant.name;
    return at::ops<Used>::template call<Tensor>("aten::pad", "", x, at::IntArrayRef(o.pad()),
                                                std::string_view(o.mode().name),
                                                is_constant ? std::optional<double>(o.value()) : std::nullopt);
}

OPFORGE_IF_USED
inline std::optional<Tensor> or_none(const Tensor& t) { return t.defined() ? std::optional<Tensor>(t) : std::nullopt; }
template <size_t D>
struct ConvFuncOptions {
    using Self = ConvFuncOptions;
    OPFORGE_OPTION(Tensor, bias)
    OPFORGE_OPTION(ExpandingArray<D>, stride, = 1)
    OPFORGE_OPTION(ExpandingArray<D>, padding, = 0)
    Self& padding(const Mode& mode) {
        padding_mode_ = mode.name;
        return *this;
    }
    OPFORGE_OPTION(ExpandingArray<D>, dilation, = 1)
    OPFORGE_OPTION(int64_t, groups, = 1)
    std::string_view padding_mode_;
};
template <size_t D>
struct ConvTransposeFuncOptions {
    using Self = ConvTransposeFuncOptions;
    OPFORGE_OPTION(Tensor, bias)
    OPFORGE_OPTION(ExpandingArray<D>, stride, = 1)
    OPFORGE_OPTION(ExpandingArray<D>, padding, = 0)
    OPFORGE_OPTION(ExpandingArray<D>, output_padding, = 0)
    OPFORGE_OPTION(int64_t, groups, = 1)
    OPFORGE_OPTION(ExpandingArray<D>, dilation, = 1)
};
#define OPFORGE_CONVOLUTION(D)                                                                                         \
    using Conv##D##dFuncOptions = ConvFuncOptions<D>;                                                                  \
    using ConvTranspose##D##dFuncOptions = ConvTransposeFuncOptions<D>;                                                \
    template <int Used = 0>                                                                                            \
    Tensor conv##D##d(const Tensor& x, const Tensor& weight, const Conv##D##dFuncOptions& o = {}) {                    \
        if (!o.padding_mode_.empty()) {                                                                                \
            return at::ops<Used>::template call<Tensor>("aten::conv" #D "d", "padding", x, weight, or_none(o.bias()),  \
                                                        at::IntArrayRef(o.stride()), o.padding_mode_,                  \
                                                        at::IntArrayRef(o.dilation()), o.groups());                    \
        }                                                                                                              \
        return at::ops<Used>::template call<Tensor>("aten::conv" #D "d", "", x, weight, or_none(o.bias()),             \
                                                    at::IntArrayRef(o.stride()), at::IntArrayRef(o.padding()),         \
                                                    at::IntArrayRef(o.dilation()), o.groups());                        \
    }                                                                                                                  \
    template <int Used = 0>                                                                                            \
    Tensor conv_transpose##D##d(const Tensor& x, const Tensor& weight, const ConvTranspose##D##dFuncOptions& o = {}) { \
        return at::ops<Used>::template call<Tensor>("aten::conv_transpose" #D "d", D == 1 ? "" : "input", x, weight,   \
                                                    or_none(o.bias()), at::IntArrayRef(o.stride()),                    \
                                                    at::IntArrayRef(o.padding()), at::IntArrayRef(o.output_padding()), \
                                                    o.groups(), at::IntArrayRef(o.dilation()));                        \
    }
OPFORGE_CONVOLUTION(1)
OPFORGE_CONVOLUTION(2)
OPFORGE_CONVOLUTION(3)
#undef OPFORGE_CONVOLUTION

struct InterpolateFuncOptions {
    using Self = InterpolateFuncOptions;
    OPFORGE_OPTION(std::optional<std::vector<int64_t>>, size)
    OPFORGE_OPTION(std::optional<std::vector<double>>, scale_factor)
    OPFORGE_OPTION(Mode, mode, = kNearest)
    OPFORGE_OPTION(std::optional<bool>, align_corners)
    OPFORGE_OPTION(std::optional<bool>, recompute_scale_factor)
    OPFORGE_OPTION(bool, antialias, = false)
};
template <int Used = 0>
Tensor interpolate(const Tensor& x, const InterpolateFuncOptions& o) {
    const std::string mode = o.mode().name;
    const int64_t dims = x.dim() - 2;
    if (o.size().has_value() == o.scale_factor().has_value()) {
        c10::facade::fail(o.size() ? "only one of size or scale_factor should be defined"
                                   : "either size or scale_factor should be defined");
    }
    std::optional<std::vector<int64_t>> size = o.size();
    std::optional<std::vector<double>> scales = o.scale_factor();
    if (scales && (o.recompute_scale_factor().value_or(false) || o.antialias())) {
        size.emplace();
        for (size_t i = 0; i < scales->size(); ++i) {
            size->push_back(int64_t(std::floor(double(x.size(int64_t(i) + 2)) * (*scales)[i])));
        }
        scales.reset();
    }
    const bool is_nearest = mode == "nearest" || mode == "nearest-exact";
    if (is_nearest && o.align_corners()) {
        c10::facade::fail(
            "align_corners option can only be set with the interpolating modes:"
            " linear | bilinear | bicubic | trilinear");
    }
    const char* const expected = dims == 1 ? "linear" : dims == 2 ? "bilinear" : "trilinear";
    if (dims < 1 || dims > 3 || (!is_nearest && mode != expected && !(dims == 2 && mode == "bicubic")) ||
        (o.antialias() && !(dims == 2 && !is_nearest))) {
        c10::facade::fail(c10::facade::text("Input Error: Only 3D, 4D and 5D input Tensors supported (got ", x.dim(),
                                            "D) for the modes: nearest | linear | bilinear | bicubic | trilinear (got ",
                                            mode, ")"));
    }
    const bool is_private = o.antialias() || mode == "nearest-exact";
    const std::string name = std::string("aten::") + (is_private ? "_upsample_" : "upsample_") +
                             (mode == "nearest-exact" ? "nearest_exact" : mode) + std::to_string(dims) + "d" +
                             (o.antialias() ? "_aa" : "");
    const std::optional<at::IntArrayRef> to = size ? std::optional<at::IntArrayRef>(*size) : std::nullopt;
    const auto by = scales ? std::optional<at::ArrayRef<double>>(*scales) : std::nullopt;
    return is_nearest ? at::ops<Used>::template call<Tensor>(name.c_str(), "vec", x, to, by)
                      : at::ops<Used>::template call<Tensor>(name.c_str(), "vec", x, to,
                                                             o.align_corners().value_or(false), by);
}

struct GridSampleFuncOptions {
    using Self = GridSampleFuncOptions;
    OPFORGE_OPTION(Mode, mode, = kBilinear)
    OPFORGE_OPTION(Mode, padding_mode, = kZeros)
    OPFORGE_OPTION(std::optional<bool>, align_corners)
};
template <int Used = 0>
Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleFuncOptions& o = {}) {
    const std::string_view mode = o.mode().name, padding = o.padding_mode().name;
    return at::ops<Used>::template call<Tensor>("aten::grid_sampler", "", x, grid,
                                                int64_t(mode == "bilinear"  ? 0
                                                        : mode == "nearest" ? 1
                                                                            : 2),
                                                int64_t(padding == "zeros"    ? 0
                                                        : padding == "border" ? 1
                                                                              : 2),
                                                o.align_corners().value_or(false));
}

struct SoftmaxFuncOptions {
    using Self = SoftmaxFuncOptions;
    SoftmaxFuncOptions(int64_t dim) : dim_(dim) {}
    OPFORGE_OPTION(int64_t, dim)
    OPFORGE_OPTION(std::optional<at::ScalarType>, dtype)
};
using LogSoftmaxFuncOptions = SoftmaxFuncOptions;
template <int Used = 0>
Tensor softmax(const Tensor& x, const SoftmaxFuncOptions& o) {
    return at::ops<Used>::template call<Tensor>("aten::softmax", "int", x, o.dim(), o.dtype());
}
template <int Used = 0>
Tensor log_softmax(const Tensor& x, const LogSoftmaxFuncOptions& o) {
    return at::ops<Used>::template call<Tensor>("aten::log_softmax", "int", x, o.dim(), o.dtype());
}
template <int Used = 0>
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {}) {
    return at::ops<Used>::template call<Tensor>("aten::linear", "", x, weight, or_none(bias));
}
#define OPFORGE_ACTIVATION(NAME)                                            \
    template <int Used = 0>                                                 \
    Tensor NAME(const Tensor& x) {                                          \
        return at::ops<Used>::template call<Tensor>("aten::" #NAME, "", x); \
    }
OPFORGE_ACTIVATION(relu)
OPFORGE_ACTIVATION(relu6)
OPFORGE_ACTIVATION(silu)
OPFORGE_ACTIVATION(mish)
OPFORGE_ACTIVATION(selu)
#undef OPFORGE_ACTIVATION
template <int Used = 0>
Tensor logsigmoid(const Tensor& x) {
    return at::ops<Used>::template call<Tensor>("aten::log_sigmoid", "", x);
}

struct NormalizeFuncOptions {
    using Self = NormalizeFuncOptions;
    OPFORGE_OPTION(double, p, = 2)
    OPFORGE_OPTION(int64_t, dim, = 1)
    OPFORGE_OPTION(double, eps, = 1e-12)
};
template <int Used = 0>
Tensor normalize(const Tensor& x, const NormalizeFuncOptions& o = {}) {
    return x / x.norm(o.p(), o.dim(), true).clamp_min(o.eps()).expand_as(x);
}

template <size_t D>
struct PoolFuncOptions {
    using Self = PoolFuncOptions;
    PoolFuncOptions(ExpandingArray<D> size) : kernel_size_(size), stride_(size) {}
    OPFORGE_OPTION(ExpandingArray<D>, kernel_size)
    OPFORGE_OPTION(ExpandingArray<D>, stride)
    OPFORGE_OPTION(ExpandingArray<D>, padding, = 0)
    OPFORGE_OPTION(ExpandingArray<D>, dilation, = 1)  // of the maximum alone
    OPFORGE_OPTION(bool, ceil_mode, = false)
    OPFORGE_OPTION(bool, count_include_pad, = true)  // of the average alone
};
#define OPFORGE_POOL(D)                                                                                            \
    using AvgPool##D##dFuncOptions = PoolFuncOptions<D>;                                                           \
    using MaxPool##D##dFuncOptions = PoolFuncOptions<D>;                                                           \
    template <int Used = 0>                                                                                        \
    Tensor max_pool##D##d(const Tensor& x, const MaxPool##D##dFuncOptions& o) {                                    \
        return at::max_pool##D##d<Used>(x, o.kernel_size(), o.stride(), o.padding(), o.dilation(), o.ceil_mode()); \
    }                                                                                                              \
    template <int Used = 0>                                                                                        \
    Tensor avg_pool##D##d(const Tensor& x, const AvgPool##D##dFuncOptions& o) {                                    \
        return at::avg_pool##D##d<Used>(x, o.kernel_size(), o.stride(), o.padding(), o.ceil_mode(),                \
                                        o.count_include_pad());                                                    \
    }
OPFORGE_POOL(1)
OPFORGE_POOL(2)
OPFORGE_POOL(3)
#undef OPFORGE_POOL

struct UnfoldFuncOptions {
    using Self = UnfoldFuncOptions;
    UnfoldFuncOptions(ExpandingArray<2> size) : kernel_size_(size) {}
    OPFORGE_OPTION(ExpandingArray<2>, kernel_size)
    OPFORGE_OPTION(ExpandingArray<2>, dilation, = 1)
    OPFORGE_OPTION(ExpandingArray<2>, padding, = 0)
    OPFORGE_OPTION(ExpandingArray<2>, stride, = 1)
};
template <int Used = 0>
Tensor unfold(const Tensor& x, const UnfoldFuncOptions& o) {
    return at::im2col<Used>(x, o.kernel_size(), o.dilation(), o.padding(), o.stride());
}
template <int Used = 0>
Tensor one_hot(const Tensor& x, int64_t classes = -1) {
    return at::one_hot<Used>(x, classes);
}

// 0 for every element, 1 for the mean, 2 for the sum, as the operators take it.
OPFORGE_IF_USED
inline int64_t reduction_of(const Mode& mode) {
    const std::string_view name = mode.name;
    return name == "none" ? 0 : name == "mean" ? 1 : 2;
}
struct LossFuncOptions {
    using Self = LossFuncOptions;
    LossFuncOptions(Mode reduction = kMean) : reduction_(reduction) {}
    OPFORGE_OPTION(Mode, reduction)
};
using MSELossFuncOptions = LossFuncOptions;
using L1LossFuncOptions = LossFuncOptions;
template <int Used = 0>
Tensor mse_loss(const Tensor& x, const Tensor& target, const MSELossFuncOptions& o = {}) {
    return at::mse_loss<Used>(x, target, reduction_of(o.reduction()));
}
template <int Used = 0>
Tensor l1_loss(const Tensor& x, const Tensor& target, const L1LossFuncOptions& o = {}) {
    return at::l1_loss<Used>(x, target, reduction_of(o.reduction()));
}
#undef OPFORGE_OPTION
}  // namespace functional
}  // namespace nn
}  // namespace opforge_facade
}  // namespace torch
