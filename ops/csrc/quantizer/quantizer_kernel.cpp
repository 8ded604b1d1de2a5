#include <opforge/quantizing.h>

#include <opforge/element.h>

#include "../cpu/random_halves.h"
#include "../cpu/update.h"

namespace opforge {
namespace {

// Calls work(begin, count) for each block of a group's values.
template <typename Work>
void each_block(int64_t begin, int64_t end, const Work& work) {
    for (; begin < end; begin += cpu::kBlock) work(begin, std::min(cpu::kBlock, end - begin));
}

// GroupRange in vectors. Unless there is a NaN, the lowest or the highest value has the largest magnitude.
class WideRange {
public:
    void add(const float* x, int64_t count) {
        int64_t k = 0;
        for (; k + cpu::Vec::kWidth <= count; k += cpu::Vec::kWidth) {
            const cpu::Vec value = cpu::load(x + k);
            low_ = smaller(value, low_);
            high_ = larger(value, high_);
            nan_ = select_nan(value, value, nan_);
        }
        for (; k < count; ++k) rest_.add(x[k]);
    }
    GroupRange range() const {
        float low[cpu::Vec::kWidth], high[cpu::Vec::kWidth], nan[cpu::Vec::kWidth];
        store(low, low_), store(high, high_), store(nan, nan_);
        GroupRange out = rest_;
        for (int64_t lane = 0; lane < cpu::Vec::kWidth; ++lane) {
            if (low[lane] <= high[lane]) out.add(low[lane]), out.add(high[lane]);  // the lane has had a number
            if (is_nan(nan[lane])) out.add(nan[lane]);
        }
        return out;
    }

private:
    cpu::Vec low_{INFINITY}, high_{-INFINITY}, nan_{0.0f};
    GroupRange rest_ = GroupRange::of_nothing();
};

// Philox numbers for elements [begin, begin + count).
class Uniforms {
public:
    Uniforms(const PhiloxKeys& keys, uint64_t offset, int64_t begin, int64_t count) {
        const cpu::RandomHalves random(keys, offset, begin, count);
        const uint16_t* const numbers = random.begin();
        for (int64_t k = 0; k < count; ++k) x_[k] = Philox::uniform(numbers[k], 0);
    }
    float operator[](int64_t k) const { return x_[k]; }

private:
    float x_[cpu::kBlock];
};

// Quantizes each group of values. read(begin, count, buffer) returns `count` floats from element `begin` of all.
template <typename Read>
void quantize(const QuantizeCall& call, const Read& read) {
    const Groups& groups = call.groups;
    const float levels = groups.levels();
    const PhiloxKeys keys(call.seed);
    const int64_t elements = groups.count * groups.elements;
    const int64_t grain = cpu::split_for(call.dtype, elements).units(groups.count, elements);
    cpu::share(call.executor, groups.count, grain, [&](int64_t from, int64_t to) {
        float buffer[cpu::kBlock];
        uint8_t codes[cpu::kBlock];
        for (int64_t group = from; group < to; ++group) {
            const int64_t first = group * groups.elements;
            const int64_t last = first + groups.elements;
            const int64_t position = call.swizzle.position(group, groups.count);
            WideRange range;
            each_block(first, last,
                       [&](int64_t begin, int64_t count) { range.add(read(begin, count, buffer), count); });
            const GroupParams params(range.range(), levels, groups.symmetric);
            params.store(call.params, position, groups.symmetric);
            uint8_t* out = call.codes + groups.bytes(position * groups.elements);
            each_block(first, last, [&](int64_t begin, int64_t count) {
                const GroupParams own = params;  // a copy: otherwise the compiler assumes that stores may change it
                const float* x = read(begin, count, buffer);
                if (call.stochastic) {
                    const Uniforms uniforms(keys, call.offset, begin, count);
                    for (int64_t k = 0; k < count; ++k) {
                        codes[k] = static_cast<uint8_t>(own.random_code(x[k], levels, uniforms[k]));
                    }
                } else {
                    for (int64_t k = 0; k < count; ++k) codes[k] = static_cast<uint8_t>(own.code(x[k], levels));
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
    quantize(call, [&](int64_t begin, int64_t count, float* buffer) -> const float* {
        if (call.dtype == DType::Float32) return static_cast<const float*>(call.input) + begin;
        cpu::with_elements(call.dtype, const_cast<void*>(call.input),
                           [&](const auto* input) { cpu::to_floats(input + begin, count, buffer); });
        return buffer;
    });
    return nullptr;
}

const char* launch_reduce(const ReduceCall& call) {
    const QuantizeCall out{call.groups, nullptr, DType::Float32, call.codes, call.params, {}, false,
                           0,           0,       call.executor};
    quantize(out, [&](int64_t begin, int64_t count, float* buffer) {
        for (int64_t k = 0; k < count; ++k) buffer[k] = call.sum(begin + k);
        return buffer;
    });
    return nullptr;
}

const char* launch_dequantize(const DequantizeCall& call) {
    const Groups& groups = call.groups;
    const int64_t elements = groups.count * groups.elements;
    const int64_t grain = cpu::split_for(call.dtype, elements).units(groups.count, elements);
    cpu::share(call.executor, groups.count, grain, [&](int64_t from, int64_t to) {
        float buffer[cpu::kBlock];
        for (int64_t group = from; group < to; ++group) {
            const GroupParams params(call.params, group, groups.symmetric);
            const int64_t first = group * groups.elements;
            each_block(first, first + groups.elements, [&](int64_t begin, int64_t count) {
                const uint8_t* codes = call.codes + groups.bytes(begin);
                if (groups.bits == 8) {
                    for (int64_t k = 0; k < count; ++k) buffer[k] = params.value(code_at(codes, k, 8));
                } else {
                    for (int64_t k = 0; k < count; ++k) buffer[k] = params.value(code_at(codes, k, 4));
                }
                cpu::with_elements(call.dtype, call.output,
                                   [&](auto* output) { cpu::from_floats(buffer, count, output + begin); });
            });
        }
    });
    return nullptr;
}

}  // namespace opforge
