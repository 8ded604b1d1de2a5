#include <opforge/quantizing.h>
#include <opforge/stable_blocks.h>

#include "../fused/values.h"

namespace opforge::fused {
namespace {

// Splits `elements` values into `count` groups.
Groups cut(int64_t elements, int64_t count, int64_t bits, bool symmetric) {
    if (bits != 8 && bits != 4) refuse({"num_bits is ", bits, ", expected 8 or 4"});
    if (count < 1 || elements % count != 0) {
        refuse({"groups is ", count, ", expected a number that divides the ", elements, " elements"});
    }
    const int64_t each = elements / count;
    if (bits == 4 && each % 2 != 0) {
        refuse({"a group has ", each, " elements, expected an even number: two 4-bit codes share a byte"});
    }
    return {count, each, static_cast<int>(bits), symmetric};
}

int64_t params_of(const Groups& groups) { return groups.symmetric ? groups.count : 2 * groups.count; }
constexpr const char* kOneByte = "one byte for each code of 8 bits, or for two of 4 bits";
constexpr const char* kParams = "a scale for each group, with an offset where it is asymmetric";

void quantize(StableIValue* stack, uint64_t, uint64_t) {
    Tensors tensors(stack, 3);
    const Tensor input = read(tensors[2], "input_vals", Kind::Values, false, tensors[0]);
    const Tensor out = read(tensors[0], "out", Kind::Codes, true, tensors[0]);
    const Tensor params = read(tensors[1], "params", Kind::Params, true, tensors[0]);
    Arguments& rest = tensors.arguments;
    const int64_t count = rest.integer();
    const int64_t bits = rest.integer();
    const Groups groups = cut(input.numel, count, bits, rest.flag());
    Swizzle swizzle;
    int64_t neighbours = count;  // 0 if something does not divide; the product of the three could overflow
    for (int64_t* number : {&swizzle.slices, &swizzle.nodes, &swizzle.devices}) {
        *number = rest.integer();
        neighbours = *number >= 1 && neighbours % *number == 0 ? neighbours / *number : 0;
    }
    if (neighbours == 0) {
        refuse({"groups is ", count, ", expected a multiple of pipeline_size ", swizzle.slices, " * nodes ",
                swizzle.nodes, " * devices_per_node ", swizzle.devices});
    }
    const bool stochastic = rest.flag();
    const auto seed = static_cast<uint64_t>(rest.integer());
    const auto offset = static_cast<uint64_t>(rest.integer());
    check_size("out", out.numel, groups.bytes(input.numel), kOneByte);
    check_size("params", params.numel, params_of(groups), kParams);
    if (input.numel == 0) return;
    const DeviceGuard guard(tensors[0], "out");
    check_launch("quantize_", launch_quantize({groups, input.data, input.dtype, static_cast<uint8_t*>(out.data),
                                               static_cast<float*>(params.data), swizzle, stochastic, seed, offset,
                                               guard.executor()}));
}

void dequantize(StableIValue* stack, uint64_t, uint64_t) {
    Tensors tensors(stack, 3);
    const Tensor out = read(tensors[0], "out", Kind::Values, true, tensors[0]);
    const Tensor codes = read(tensors[1], "quantized_data", Kind::Codes, false, tensors[0]);
    const Tensor params = read(tensors[2], "params", Kind::Params, false, tensors[0]);
    Arguments& rest = tensors.arguments;
    const int64_t count = rest.integer();
    const int64_t bits = rest.integer();
    const Groups groups = cut(out.numel, count, bits, rest.flag());
    check_size("quantized_data", codes.numel, groups.bytes(out.numel), kOneByte);
    check_size("params", params.numel, params_of(groups), kParams);
    if (out.numel == 0) return;
    const DeviceGuard guard(tensors[0], "out");
    check_launch("dequantize_",
                 launch_dequantize({groups, static_cast<const uint8_t*>(codes.data),
                                    static_cast<const float*>(params.data), out.data, out.dtype, guard.executor()}));
}

void reduce(StableIValue* stack, uint64_t, uint64_t) {
    Tensors tensors(stack, 4);
    const Tensor out = read(tensors[0], "out", Kind::Codes, true, tensors[0]);
    const Tensor params = read(tensors[1], "params", Kind::Params, true, tensors[0]);
    const Tensor input = read(tensors[2], "input_vals", Kind::Codes, false, tensors[0]);
    const Tensor input_params = read(tensors[3], "input_scales", Kind::Params, false, tensors[0]);
    Arguments& rest = tensors.arguments;
    const int64_t input_groups = rest.integer();
    const int64_t count = rest.integer();
    const int64_t bits = rest.integer();
    const bool symmetric = rest.flag();
    const int64_t ways = rest.integer();
    const int64_t elements = bits == 4 ? 2 * input.numel : input.numel;
    if (ways < 1 || elements % ways != 0 || input_groups < 1 || input_groups % ways != 0) {
        refuse({"devices_per_node is ", ways, ", expected a number that divides in_groups, ", input_groups,
                ", and the ", elements, " elements"});
    }
    const Groups in = cut(elements / ways, input_groups / ways, bits, symmetric);
    const Groups groups = cut(elements / ways, count, bits, symmetric);
    check_size("input_scales", input_params.numel, ways * params_of(in), kParams);
    check_size("out", out.numel, input.numel / ways, kOneByte);
    check_size("params", params.numel, params_of(groups), kParams);
    if (out.numel == 0) return;
    const DeviceGuard guard(tensors[0], "out");
    check_launch("quantized_reduction_",
                 launch_reduce({groups, static_cast<const uint8_t*>(input.data),
                                static_cast<const float*>(input_params.data), ways, in.count, in.elements,
                                static_cast<uint8_t*>(out.data), static_cast<float*>(params.data), guard.executor()}));
}

}  // namespace
}  // namespace opforge::fused

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def(
        "quantize_(Tensor(a!) out, Tensor(b!) params, Tensor input_vals, int groups, int num_bits, bool symmetric, int "
        "pipeline_size=1, int nodes=1, int devices_per_node=1, bool stochastic=False, int seed=0, int offset=0) -> ()");
    m.def(
        "dequantize_(Tensor(a!) out, Tensor quantized_data, Tensor params, int groups, int num_bits, bool symmetric) "
        "-> ()");
    m.def(
        "quantized_reduction_(Tensor(a!) out, Tensor(b!) params, Tensor input_vals, Tensor input_scales, int "
        "in_groups, int out_groups, int num_bits, bool symmetric, int devices_per_node) -> ()");
}

// For every backend: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("quantize_", OPFORGE_BOXED(&opforge::fused::quantize));
    m.impl("dequantize_", OPFORGE_BOXED(&opforge::fused::dequantize));
    m.impl("quantized_reduction_", OPFORGE_BOXED(&opforge::fused::reduce));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) {
    m.impl("quantize_", OPFORGE_BOXED(&opforge::fused::check_meta<3>));
    m.impl("dequantize_", OPFORGE_BOXED(&opforge::fused::check_meta<3>));
    m.impl("quantized_reduction_", OPFORGE_BOXED(&opforge::fused::check_meta<4>));
}
