#include <opforge/quantizing.h>

#include "fused_multi_tensor.h"

namespace opforge {
namespace {

// Quantizes each group of values, which read(begin, count, x) gives as floats, from element `begin` of all on.
template <typename Read>
void quantize(const QuantizeCall& call, const Read& read) {
    const Groups& groups = call.groups;
    const float levels = groups.levels();
    const int64_t grain = std::max<int64_t>(1, cpu::kGrain / groups.elements);
    cpu::share(call.place, groups.count, grain, [&](int64_t from, int64_t to) {
        float x[cpu::kBlock];
        uint8_t codes[cpu::kBlock];
        for (int64_t group = from; group < to; ++group) {
            const int64_t first = group * groups.elements;
            const int64_t last = first + groups.elements;
            const int64_t place = call.swizzle.place(group, groups.count);
            GroupRange range = GroupRange::of_nothing();
            cpu::each_block(first, last, [&](int64_t begin, int64_t count) {
                read(begin, count, x);
                for (int64_t k = 0; k < count; ++k) range.add(x[k]);
            });
            const GroupParams params(range, levels, groups.symmetric);
            params.store(call.params, place, groups.symmetric);
            uint8_t* out = call.codes + groups.bytes(place * groups.elements);
            cpu::each_block(first, last, [&](int64_t begin, int64_t count) {
                read(begin, count, x);
                for (int64_t k = 0; k < count && call.stochastic; ++k) {
                    const auto at = static_cast<uint64_t>(begin + k);
                    const float uniform = Philox(call.seed, at / 4, call.offset).uniform(static_cast<int>(at % 4));
                    codes[k] = static_cast<uint8_t>(params.code(x[k], levels, uniform));
                }
                for (int64_t k = 0; k < count && !call.stochastic; ++k) {
                    codes[k] = static_cast<uint8_t>(params.code(x[k], levels));
                }
                const int64_t at = groups.bytes(begin - first);
                if (groups.bits == 8) {
                    std::copy(codes, codes + count, out + at);
                } else {
                    for (int64_t k = 0; k < count; k += 2) {
                        out[at + k / 2] = static_cast<uint8_t>(codes[k] << 4 | (codes[k + 1] & 0xf));
                    }
                }
            });
        }
    });
}

}  // namespace

const char* launch_quantize(const QuantizeCall& call) {
    cpu::with_elements(call.dtype, const_cast<void*>(call.input), [&](const auto* input) {
        quantize(call, [&](int64_t begin, int64_t count, float* x) {
            for (int64_t k = 0; k < count; ++k) x[k] = to_float(input[begin + k]);
        });
    });
    return nullptr;
}

const char* launch_reduce(const ReduceCall& call) {
    const QuantizeCall out{call.groups, nullptr, DType::Float32, call.codes, call.params, {}, false, 0, 0, call.place};
    quantize(out, [&](int64_t begin, int64_t count, float* x) {
        for (int64_t k = 0; k < count; ++k) x[k] = call.sum(begin + k);
    });
    return nullptr;
}

const char* launch_dequantize(const DequantizeCall& call) {
    const Groups& groups = call.groups;
    cpu::with_elements(call.dtype, call.output, [&](auto* output) {
        cpu::share(call.place, groups.count, std::max<int64_t>(1, cpu::kGrain / groups.elements),
                   [&](int64_t from, int64_t to) {
                       for (int64_t group = from; group < to; ++group) {
                           const GroupParams params(call.params, group, groups.symmetric);
                           const uint8_t* codes = call.codes + groups.bytes(group * groups.elements);
                           auto* out = output + group * groups.elements;
                           for (int64_t k = 0; k < groups.elements; ++k) {
                               from_float(params.value(code_at(codes, k, groups.bits)), out[k]);
                           }
                       }
                   });
    });
    return nullptr;
}

}  // namespace opforge
