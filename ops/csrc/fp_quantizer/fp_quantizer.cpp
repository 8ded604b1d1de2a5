#include <opforge/fp_quantizing.h>
#include <opforge/stable_blocks.h>

#include "../fused/values.h"

namespace opforge::fused {
namespace {

// Splits `elements` values into groups of `each`, with codes of `bits` bits. The mantissa of 12, 6 and 4 bits has one
// size, so the argument is ignored for them.
FpGroups cut(int64_t elements, int64_t each, int64_t bits, int64_t mantissa) {
    if (bits != 8 && bits != 12 && bits != 6 && bits != 4) {
        refuse({"q_bits is ", bits, ", expected 12, 8, 6 or 4"});
    }
    if (bits == 8 && mantissa != 3 && mantissa != 2) {
        refuse({"q_mantissa_bits is ", mantissa, ", expected 3 or 2 for 8 bits"});
    }
    if (each < 1 || elements % each != 0) {
        refuse({"group_size is ", each, ", expected a number that divides the ", elements,
                " elements: pad the tensor, or use another size"});
    }
    if (each * (bits % 8) % 8 != 0) {
        refuse({"group_size is ", each, ", expected a multiple of ", (bits == 6 ? "4" : "2"),
                ": the codes of a group, of ", bits, " bits each, are whole bytes"});
    }
    return {elements / each, each, static_cast<int>(bits), static_cast<int>(mantissa)};
}

void check_rows(const char* name, int64_t numel, const FpGroups& groups) {
    const int64_t expected = groups.count * groups.row();
    if (numel == expected) return;
    refuse({name, " has ", numel, " elements, expected ", expected, ": rows of ", groups.row(),
            " bytes, the codes of a group of ", groups.elements, " and its scale"});
}

void quantize(StableIValue* stack, uint64_t, uint64_t) {
    Tensors tensors(stack, 2);
    const Tensor out = read(tensors[0], "out", Kind::Codes, true, tensors[0]);
    const Tensor input = read(tensors[1], "input", Kind::Values, false, tensors[0]);
    Arguments& rest = tensors.arguments;
    const int64_t size = rest.integer(), bits = rest.integer(), mantissa = rest.integer();
    const FpGroups groups = cut(input.numel, size, bits, mantissa);
    const bool stochastic = rest.flag();
    const auto seed = static_cast<uint64_t>(rest.integer());
    const auto offset = static_cast<uint64_t>(rest.integer());
    check_rows("out", out.numel, groups);
    if (groups.count == 0) return;
    const DeviceGuard guard(tensors[0], "out");
    check_launch("fp_quantize_", launch_fp_quantize({groups, input.data, input.dtype, static_cast<uint8_t*>(out.data),
                                                     stochastic, seed, offset, guard.executor()}));
}

void dequantize(StableIValue* stack, uint64_t, uint64_t) {
    Tensors tensors(stack, 2);
    const Tensor out = read(tensors[0], "out", Kind::Values, true, tensors[0]);
    const Tensor rows = read(tensors[1], "rows", Kind::Codes, false, tensors[0]);
    Arguments& rest = tensors.arguments;
    const int64_t size = rest.integer(), bits = rest.integer(), mantissa = rest.integer();
    const FpGroups groups = cut(out.numel, size, bits, mantissa);
    check_rows("rows", rows.numel, groups);
    if (groups.count == 0) return;
    const DeviceGuard guard(tensors[0], "out");
    check_launch("fp_dequantize_",
                 launch_fp_dequantize({groups, static_cast<const uint8_t*>(rows.data), out.data, out.dtype, nullptr,
                                       false, 1, groups.count, guard.executor()}));
}

// Throws unless each index is in [0, blocks). On a GPU that would need a wait: there, a block whose index is out of
// range becomes NaN.
void check_indexes([[maybe_unused]] const FpDequantizeCall& call, [[maybe_unused]] int64_t count) {
#if !defined(OPFORGE_GPU)
    for (int64_t at = 0; at < count; ++at) {
        const int64_t index = call.index(at);
        if (index >= 0 && index < call.blocks) continue;
        refuse({"indexes[", at, "] is ", index, ", expected a number from 0 to less than ", call.blocks,
                ", the blocks in rows"});
    }
#endif
}

void selective_dequantize(StableIValue* stack, uint64_t, uint64_t) {
    Tensors tensors(stack, 3);
    const Tensor out = read(tensors[0], "out", Kind::Values, true, tensors[0]);
    const Tensor rows = read(tensors[1], "rows", Kind::Codes, false, tensors[0]);
    const Tensor indexes = read(tensors[2], "indexes", Kind::Indexes, false, tensors[0]);
    Arguments& rest = tensors.arguments;
    const int64_t size = rest.integer(), bits = rest.integer(), mantissa = rest.integer();
    const FpGroups groups = cut(out.numel, size, bits, mantissa);
    if (indexes.numel == 0 && out.numel == 0) return;
    if (indexes.numel == 0 || groups.count % indexes.numel != 0) {
        refuse({"out has ", groups.count, " groups of ", size, ", expected a multiple of the ", indexes.numel,
                " indexes: a block has whole groups"});
    }
    if (out.numel == 0) return;
    const int64_t block = groups.count / indexes.numel;
    if (rows.numel % (block * groups.row()) != 0) {
        refuse({"rows has ", rows.numel, " elements, expected a multiple of ", block * groups.row(), ": blocks of ",
                block, " rows of ", groups.row(), " bytes, the codes of a group of ", groups.elements,
                " and its scale"});
    }
    const DeviceGuard guard(tensors[0], "out");
    const FpDequantizeCall call{
        groups, static_cast<const uint8_t*>(rows.data), out.data,        out.dtype, indexes.data, indexes.wide,
        block,  rows.numel / (block * groups.row()),    guard.executor()};
    check_indexes(call, indexes.numel);
    check_launch("fp_selective_dequantize_", launch_fp_dequantize(call));
}

}  // namespace
}  // namespace opforge::fused

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def(
        "fp_quantize_(Tensor(a!) out, Tensor input, int group_size, int q_bits=8, int q_mantissa_bits=3, bool "
        "stochastic=False, int seed=0, int offset=0) -> ()");
    m.def("fp_dequantize_(Tensor(a!) out, Tensor rows, int group_size, int q_bits=8, int q_mantissa_bits=3) -> ()");
    m.def(
        "fp_selective_dequantize_(Tensor(a!) out, Tensor rows, Tensor indexes, int group_size, int q_bits=8, int "
        "q_mantissa_bits=3) -> ()");
}

// For every backend: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("fp_quantize_", OPFORGE_BOXED(&opforge::fused::quantize));
    m.impl("fp_dequantize_", OPFORGE_BOXED(&opforge::fused::dequantize));
    m.impl("fp_selective_dequantize_", OPFORGE_BOXED(&opforge::fused::selective_dequantize));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) {
    m.impl("fp_quantize_", OPFORGE_BOXED(&opforge::fused::check_meta<2>));
    m.impl("fp_dequantize_", OPFORGE_BOXED(&opforge::fused::check_meta<2>));
    m.impl("fp_selective_dequantize_", OPFORGE_BOXED(&opforge::fused::check_meta<3>));
}
