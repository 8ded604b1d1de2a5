#include "../cpu/update.h"
#include "../fused/kernels.h"

namespace opforge {
namespace {

constexpr int kOperands = 2 + LambRule::kStates;
constexpr unsigned kParams = 1, kGrads = 2, kStates = 4 | 8;  // bits of operands for each_vector

struct Squares {
    double params = 0.0, directions = 0.0;
};

// Uses as many partial sums as the widest vector has lanes on any machine, so that results are the same everywhere.
class SumOfSquares {
public:
    // Adds the vector of elements from `at` on. Only the first `count` of them belong to the tensor.
    void add(cpu::Vec x, int64_t at, int64_t count) {
        cpu::Vec& sum = sums_[at / cpu::Vec::kWidth % kVectors];
        if (count < cpu::Vec::kWidth) {
            float lanes[cpu::Vec::kWidth];
            store(lanes, x);
            std::fill(lanes + count, lanes + cpu::Vec::kWidth, 0.0f);
            x = cpu::load(lanes);
        }
        sum = fma(x, x, sum);
    }
    double total() const {
        float lanes[kLanes];
        for (int64_t i = 0; i < kVectors; ++i) store(lanes + i * cpu::Vec::kWidth, sums_[i]);
        double total = 0.0;
        for (const float lane : lanes) total += lane;
        return total;
    }

private:
    static constexpr int64_t kLanes = 16, kVectors = kLanes / cpu::Vec::kWidth;
    cpu::Vec sums_[kVectors] = {};
};

}  // namespace

// No workspace: launch_lamb allocates its sums itself.
int64_t lamb_workspace(const TensorGroups&) { return 0; }

const char* launch_lamb(const TensorGroups& groups, const LambNumbers& numbers, float* ratios, float*) {
    if (cpu::is_noop(groups)) return nullptr;
    const LambRule rule = numbers.rule();
    std::vector<std::vector<Squares>> sums(static_cast<size_t>(groups.count));
    for (int64_t i = 0; i < groups.count; ++i) {
        sums[i].resize(static_cast<size_t>((groups.items[i].numel + cpu::kPart - 1) / cpu::kPart));
    }
    cpu::each_part(groups, false, [&](int64_t tensor, int64_t begin, int64_t end) {
        SumOfSquares params, directions;
        cpu::each_vector<kOperands, kParams | kGrads | kStates, kStates>(
            groups.items[tensor], begin, end, [rule, begin, end, &params, &directions](cpu::Vec* x, int64_t at) {
                directions.add(rule.accumulate(x), at, end - begin - at);
                params.add(x[0], at, end - begin - at);
            });
        sums[tensor][begin / cpu::kPart] = {params.total(), directions.total()};
    });
    for (int64_t i = 0; i < groups.count; ++i) {
        Squares all;
        for (const Squares& part : sums[i]) {
            all.params += part.params;
            all.directions += part.directions;
        }
        if (groups.items[i].numel > 0) ratios[i] = rule.ratio(all.params, all.directions);
    }
    cpu::each_part(groups, true, [&](int64_t tensor, int64_t begin, int64_t end) {
        cpu::each_vector<kOperands, kParams | kStates, kParams>(
            groups.items[tensor], begin, end,
            [rule, ratio = ratios[tensor]](cpu::Vec* x, int64_t) { rule.descend(x, ratio); });
    });
    return nullptr;
}

}  // namespace opforge
