#include <opforge/fp_quantizing.h>

#include <opforge/element.h>

#include <type_traits>

#include "../cpu/random_halves.h"
#include "../cpu/simd/streaming.h"
#include "../cpu/update.h"
#include "fp_blocks.h"

namespace opforge {
namespace {

constexpr int64_t kAhead = 4096;       // bytes; the codes behind these are fetched meanwhile
constexpr int64_t kSmallGroup = 4096;  // elements; two groups are in the first-level cache

// Calls work(begin, count) for each block of `total` elements.
template <typename Work>
void each_block(int64_t total, const Work& work) {
    for (int64_t begin = 0; begin < total; begin += cpu::kBlock) work(begin, std::min(cpu::kBlock, total - begin));
}

template <typename Format, typename T>
void quantize(const FpQuantizeCall& call, const T* input) {
    const FpGroups& groups = call.groups;
    const int64_t row = groups.row();
    const PhiloxKeys keys(call.seed);
    const int64_t elements = groups.count * groups.elements;
    const int64_t grain = cpu::split_for(call.dtype, elements).units(groups.count, elements);
    cpu::share(call.executor, groups.count, grain, [&](int64_t from, int64_t to) {
        const auto scale_of = [&](int64_t group) {
            const T* const values = input + group * groups.elements;
            return FpScale::of(cpu::largest_magnitude(values, groups.elements), Format::range());
        };
        // The next group's scale is computed first: its division would keep the processor waiting.
        const bool is_small = groups.elements <= kSmallGroup;
        FpScale next = scale_of(from);
        for (int64_t group = from; group < to; ++group) {
            const FpScale scale = next;
            if (is_small && group + 1 < to) next = scale_of(group + 1);
            const T* const values = input + group * groups.elements;
            uint8_t* const out = call.rows + group * row;
            if (!scale.encodes()) std::memset(out, 0, static_cast<size_t>(row));
            each_block(scale.encodes() ? groups.elements : 0, [&](int64_t begin, int64_t count) {
                uint8_t* const codes = out + groups.bytes(begin);
                if (call.stochastic) {
                    const cpu::RandomHalves random(keys, call.offset, group * groups.elements + begin, count);
                    cpu::encode_block<Format, true>(values + begin, count, scale.inverse, random.begin(), codes);
                } else {
                    cpu::encode_block<Format, false>(values + begin, count, scale.inverse, nullptr, codes);
                }
            });
            std::memcpy(out + row - FpGroups::kScaleBytes, &scale.scale, FpGroups::kScaleBytes);
            if (!is_small && group + 1 < to) next = scale_of(group + 1);
        }
    });
}

template <typename Format, bool kTable, typename T>
void dequantize(const FpDequantizeCall& call, T* output) {
    const FpGroups& groups = call.groups;
    const int64_t elements = groups.count * groups.elements;
    const int64_t grain = cpu::split_for(call.dtype, elements).units(groups.count, elements);
    const bool streams = cpu::streams(groups.count * groups.elements * static_cast<int64_t>(sizeof(T)));
    // Past the caches: from registers to whole vectors, otherwise from a block in the caches.
    using Decoder = cpu::Decoder<Format, T, kTable>;
    const auto group_bytes = static_cast<uintptr_t>(groups.elements) * sizeof(T);
    const bool direct = streams && Decoder::kStreams && (reinterpret_cast<uintptr_t>(output) | group_bytes) % 64 == 0;
    const bool copied = streams && !direct;
    cpu::share(call.executor, groups.count, grain, [&](int64_t from, int64_t to) {
        alignas(64) T result[cpu::kBlock];
        for (int64_t group = from; group < to; ++group) {
            const uint8_t* const row = call.rows + call.source(group) * groups.row();
            float scale;
            std::memcpy(&scale, row + groups.bytes(groups.elements), sizeof scale);
            const Decoder decoder(scale);
            each_block(groups.elements, [&](int64_t begin, int64_t count) {
                T* const at = output + group * groups.elements + begin;
                const uint8_t* const codes = row + groups.bytes(begin);
                cpu::prefetch(codes + kAhead, groups.bytes(count));
                decoder.block(codes, count, copied ? result : at, direct);
                if (copied) cpu::stream(at, result, count);
            });
        }
        if (streams) cpu::end_streams();
    });
}

}  // namespace

const char* launch_fp_quantize(const FpQuantizeCall& call) {
    with_format(call.groups, [&](auto format) {
        cpu::with_elements(call.dtype, const_cast<void*>(call.input),
                           [&](const auto* input) { quantize<decltype(format)>(call, input); });
    });
    return nullptr;
}

const char* launch_fp_dequantize(const FpDequantizeCall& call) {
    with_format(call.groups, [&](auto format) {
        cpu::with_elements(call.dtype, call.output, [&](auto* output) {
            using Format = decltype(format);
            constexpr int64_t kTableGroup = cpu::kTableGroup<Format, std::remove_pointer_t<decltype(output)>>;
            if constexpr (kTableGroup > 0) {
                if (call.groups.elements >= kTableGroup) return dequantize<Format, true>(call, output);
            }
            dequantize<Format, false>(call, output);
        });
    });
    return nullptr;
}

}  // namespace opforge
