#include <opforge/quantizing.h>

#include <cstring>

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

// Codes of 8 bits from bytes of two codes of 4 bits. `count` is even.
void unpack(const uint8_t* __restrict from, int64_t count, int8_t* __restrict to) {
    for (int64_t i = 0; i < count / 2; ++i) {
        const unsigned byte = from[i];
        to[2 * i] = static_cast<int8_t>((byte >> 4 ^ 8u) - 8u);
        to[2 * i + 1] = static_cast<int8_t>(((byte & 15u) ^ 8u) - 8u);
    }
}

// The reverse.
void pack(const uint8_t* __restrict from, int64_t count, uint8_t* __restrict to) {
    for (int64_t i = 0; i < count / 2; ++i) {
        to[i] = static_cast<uint8_t>(from[2 * i] << 4 | (from[2 * i + 1] & 15u));
    }
}

// The values of up to kStrip codes, in vectors. Those behind `count` are not defined.
class Strip {
public:
    static constexpr int64_t kCount = 64, kVectors = kCount / cpu::Vec::kWidth;

    Strip(const Groups& groups, const uint8_t* codes, int64_t count, const float* params, int64_t group)
        : params_(params, group, groups.symmetric) {
        if (count < kCount) std::memset(codes_, 0, sizeof codes_);
        if (groups.bits == 4) {
            count == kCount ? unpack(codes, kCount, codes_) : unpack(codes, count, codes_);
        } else if (count == kCount) {
            from_ = reinterpret_cast<const int8_t*>(codes);
        } else {
            std::copy_n(codes, count, codes_);
        }
    }
    cpu::Vec operator[](int64_t i) const {
        return fma(cpu::load(from_ + i * cpu::Vec::kWidth), cpu::Vec(params_.scale), cpu::Vec(params_.offset));
    }

private:
    GroupParams params_;
    alignas(64) int8_t codes_[kCount];
    const int8_t* from_ = codes_;
};

// Calls visit(begin, count) for the strips of elements [begin, end).
template <typename Visit>
void each_strip(int64_t begin, int64_t end, const Visit& visit) {
    for (; begin < end; begin += Strip::kCount) visit(begin, std::min(Strip::kCount, end - begin));
}

// Writes up to a strip of vectors.
template <typename T, typename Vectors>
void put_strip(const Vectors& vectors, int64_t count, T* to) {
    if (count == Strip::kCount) {
        for (int64_t i = 0; i < Strip::kVectors; ++i) store(to + i * cpu::Vec::kWidth, vectors[i]);
        return;
    }
    float values[Strip::kCount];
    for (int64_t i = 0; i < Strip::kVectors; ++i) store(values + i * cpu::Vec::kWidth, vectors[i]);
    cpu::from_floats(values, count, to);
}

// Writes the sums of all tensors, in their order, of elements [begin, begin + count).
void add_up(const ReduceCall& call, int64_t begin, int64_t count, float* sums) {
    const int64_t bytes = call.groups.bytes(call.input_groups * call.input_elements);
    for (const int64_t first = begin, end = begin + count; begin < end;) {
        const int64_t group = begin / call.input_elements;
        const int64_t stop = std::min(end, (group + 1) * call.input_elements);
        each_strip(begin, stop, [&](int64_t at, int64_t length) {
            cpu::Vec total[Strip::kVectors];
            std::fill_n(total, Strip::kVectors, cpu::Vec(0.0f));
            const uint8_t* codes = call.input + call.groups.bytes(at);
            for (int64_t tensor = 0; tensor < call.tensors; ++tensor, codes += bytes) {
                const Strip strip(call.groups, codes, length, call.input_params, tensor * call.input_groups + group);
                for (int64_t i = 0; i < Strip::kVectors; ++i) total[i] = total[i] + strip[i];
            }
            put_strip(total, length, sums + (at - first));
        });
        begin = stop;
    }
}

// Quantizes each group of values. read(begin, count, buffer) returns `count` floats from element `begin` of all.
template <typename Read>
void quantize(const QuantizeCall& call, const Read& read) {
    const Groups& groups = call.groups;
    const float levels = groups.levels();
    const PhiloxKeys keys(call.seed);
    const int64_t elements = groups.count * groups.elements;
    const int64_t grain = cpu::split_for(call.dtype, elements).units(groups.count, elements);
    // What is read for the range is kept for the codes, unless the group is large.
    constexpr int64_t kKept = 8 * cpu::kBlock;
    const bool keeps = groups.elements <= kKept;
    cpu::share(call.executor, groups.count, grain, [&](int64_t from, int64_t to) {
        float buffer[kKept];
        const float* kept = nullptr;
        uint8_t codes[cpu::kBlock];
        for (int64_t group = from; group < to; ++group) {
            const int64_t first = group * groups.elements;
            const int64_t last = first + groups.elements;
            const int64_t position = call.swizzle.position(group, groups.count);
            WideRange range;
            each_block(first, last, [&](int64_t begin, int64_t count) {
                const float* const x = read(begin, count, buffer + (keeps ? begin - first : 0));
                range.add(x, count);
                if (begin == first) kept = x;
            });
            const GroupParams params(range.range(), levels, groups.symmetric);
            params.store(call.params, position, groups.symmetric);
            uint8_t* out = call.codes + groups.bytes(position * groups.elements);
            each_block(first, last, [&](int64_t begin, int64_t count) {
                const GroupParams own = params;  // a copy: otherwise the compiler assumes that stores may change it
                const float* const x = keeps ? kept + (begin - first) : read(begin, count, buffer);
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
                    pack(codes, count, out + at);
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
        add_up(call, begin, count, buffer);
        return buffer;
    });
    return nullptr;
}

const char* launch_dequantize(const DequantizeCall& call) {
    const Groups& groups = call.groups;
    const int64_t elements = groups.count * groups.elements;
    const int64_t grain = cpu::split_for(call.dtype, elements).units(groups.count, elements);
    cpu::share(call.executor, groups.count, grain, [&](int64_t from, int64_t to) {
        cpu::with_elements(call.dtype, call.output, [&](auto* output) {
            for (int64_t group = from; group < to; ++group) {
                each_strip(group * groups.elements, (group + 1) * groups.elements, [&](int64_t begin, int64_t count) {
                    const Strip strip(groups, call.codes + groups.bytes(begin), count, call.params, group);
                    put_strip(strip, count, output + begin);
                });
            }
        });
    });
    return nullptr;
}

}  // namespace opforge
