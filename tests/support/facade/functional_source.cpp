// Functions of torch::nn::functional, and what sources print.
#include <torch/extension.h>

namespace F = torch::nn::functional;
using torch::Tensor;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("pad", [](Tensor x) { return F::pad(x, F::PadFuncOptions({1, 2})); });
    m.def("pad_value", [](Tensor x) { return F::pad(x, F::PadFuncOptions({1, 1, 0, 1}).value(2.5)); });
    m.def("pad_reflect", [](Tensor x) { return F::pad(x, F::PadFuncOptions({1, 1, 2, 1}).mode(torch::kReflect)); });
    m.def("pad_circular", [](Tensor x) { return F::pad(x, F::PadFuncOptions({1, 1, 1, 1}).mode(torch::kCircular)); });
    m.def("pad_replicate", [](Tensor x) { return F::pad(x, F::PadFuncOptions({0, 2, 1, 0}).mode(torch::kReplicate)); });
    m.def("conv1d", [](Tensor x, Tensor w) {
        return F::conv1d(x.flatten(2), w.flatten(2), F::Conv1dFuncOptions().stride(2).padding(1));
    });
    m.def("conv2d", [](Tensor x, Tensor w) { return F::conv2d(x, w); });
    m.def("conv2d_all", [](Tensor x, Tensor w) {
        auto bias = torch::ones({w.size(0)}, w.options());
        return F::conv2d(x, w, F::Conv2dFuncOptions().bias(bias).stride({2, 1}).padding(1).dilation({1, 2}).groups(1));
    });
    m.def("conv2d_same",
          [](Tensor x, Tensor w) { return F::conv2d(x, w, F::Conv2dFuncOptions().padding(torch::kSame)); });
    m.def("conv3d", [](Tensor x, Tensor w) {
        return F::conv3d(x.unsqueeze(2), w.unsqueeze(2), F::Conv3dFuncOptions().padding({0, 1, 1}));
    });
    m.def("conv_transpose1d", [](Tensor x, Tensor w) {
        return F::conv_transpose1d(x.flatten(2), w.flatten(2).transpose(0, 1),
                                   F::ConvTranspose1dFuncOptions().stride(2));
    });
    m.def("conv_transpose2d", [](Tensor x, Tensor w) {
        return F::conv_transpose2d(x, w.transpose(0, 1),
                                   F::ConvTranspose2dFuncOptions().stride(2).padding(1).output_padding({0, 1}));
    });
    m.def("conv_transpose3d", [](Tensor x, Tensor w) {
        return F::conv_transpose3d(x.unsqueeze(2), w.unsqueeze(2).transpose(0, 1), F::ConvTranspose3dFuncOptions());
    });
    m.def("nearest", [](Tensor x) {
        return F::interpolate(x, F::InterpolateFuncOptions().size(std::vector<int64_t>({7, 3})).mode(torch::kNearest));
    });
    m.def("nearest_exact", [](Tensor x) {
        return F::interpolate(
            x, F::InterpolateFuncOptions().scale_factor(std::vector<double>({1.5, 2.0})).mode(torch::kNearestExact));
    });
    m.def("linear_size", [](Tensor x) {
        return F::interpolate(
            x.flatten(2),
            F::InterpolateFuncOptions().size(std::vector<int64_t>({9})).mode(torch::kLinear).align_corners(true));
    });
    m.def("bilinear", [](Tensor x) {
        return F::interpolate(x, F::InterpolateFuncOptions()
                                     .scale_factor(std::vector<double>({2.3, 1.7}))
                                     .mode(torch::kBilinear)
                                     .align_corners(false));
    });
    m.def("bilinear_again", [](Tensor x) {
        return F::interpolate(x, F::InterpolateFuncOptions()
                                     .scale_factor(std::vector<double>({2.3, 1.7}))
                                     .mode(torch::kBilinear)
                                     .align_corners(false)
                                     .recompute_scale_factor(true));
    });
    m.def("bicubic", [](Tensor x) {
        return F::interpolate(
            x,
            F::InterpolateFuncOptions().size(std::vector<int64_t>({3, 8})).mode(torch::kBicubic).align_corners(true));
    });
    m.def("antialias", [](Tensor x) {
        return F::interpolate(x, F::InterpolateFuncOptions()
                                     .size(std::vector<int64_t>({3, 2}))
                                     .mode(torch::kBilinear)
                                     .align_corners(false)
                                     .antialias(true));
    });
    m.def("trilinear", [](Tensor x) {
        return F::interpolate(x.unsqueeze(2), F::InterpolateFuncOptions()
                                                  .size(std::vector<int64_t>({2, 3, 8}))
                                                  .mode(torch::kTrilinear)
                                                  .align_corners(false));
    });
    m.def("of_both", [](Tensor x) {
        return F::interpolate(x, F::InterpolateFuncOptions()
                                     .size(std::vector<int64_t>({3, 2}))
                                     .scale_factor(std::vector<double>({2.0, 2.0})));
    });
    m.def("of_neither", [](Tensor x) { return F::interpolate(x, F::InterpolateFuncOptions()); });
    m.def("grid_sample", [](Tensor x, Tensor g) { return F::grid_sample(x, g); });
    m.def("grid_sample_all", [](Tensor x, Tensor g) {
        return F::grid_sample(
            x, g,
            F::GridSampleFuncOptions().mode(torch::kNearest).padding_mode(torch::kReflection).align_corners(true));
    });
    m.def("softmax", [](Tensor x) { return F::softmax(x, F::SoftmaxFuncOptions(1)); });
    m.def("softmax_dtype", [](Tensor x) { return F::softmax(x, F::SoftmaxFuncOptions(-1).dtype(torch::kFloat64)); });
    m.def("log_softmax", [](Tensor x) { return F::log_softmax(x, 1); });
    m.def("linear", [](Tensor x, Tensor w) { return F::linear(x.slice(-1, 0, 2), w.flatten(0, 2)); });
    m.def("relu", [](Tensor x) { return F::relu(x); });
    m.def("silu", [](Tensor x) { return F::silu(x); });
    m.def("mish", [](Tensor x) { return F::mish(x); });
    m.def("logsigmoid", [](Tensor x) { return F::logsigmoid(x); });
    m.def("normalize", [](Tensor x) { return F::normalize(x); });
    m.def("normalize_all", [](Tensor x) { return F::normalize(x, F::NormalizeFuncOptions().p(1).dim(-1)); });
    m.def("avg_pool2d", [](Tensor x) { return F::avg_pool2d(x, F::AvgPool2dFuncOptions(2)); });
    m.def("avg_pool2d_all", [](Tensor x) {
        return F::avg_pool2d(x, F::AvgPool2dFuncOptions({3, 2}).stride(1).padding(1).count_include_pad(false));
    });
    m.def("max_pool2d", [](Tensor x) { return F::max_pool2d(x, F::MaxPool2dFuncOptions(2).stride({1, 2})); });
    m.def("max_pool1d",
          [](Tensor x) { return F::max_pool1d(x.flatten(2), F::MaxPool1dFuncOptions(3).ceil_mode(true)); });
    m.def("unfold", [](Tensor x) { return F::unfold(x, F::UnfoldFuncOptions({2, 3}).padding(1).stride(2)); });
    m.def("one_hot", [](Tensor i) { return F::one_hot(i, 4); });
    m.def("mse_loss", [](Tensor x) { return F::mse_loss(x, x * 2); });
    m.def("l1_loss", [](Tensor x) { return F::l1_loss(x, x * 2, F::L1LossFuncOptions(torch::kSum)); });
    m.def("text", [](Tensor x) {
        std::ostringstream text;
        text << x << "; " << Tensor();
        return text.str();
    });
    m.def("cuda", [] { return std::make_pair(torch::cuda::is_available(), torch::cuda::device_count()); });
}
