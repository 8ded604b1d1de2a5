#include "../fused/kernels.h"
#include "fused_multi_tensor.h"

namespace opforge {
namespace {

constexpr int kOperands = 2 + LambRule::kStates;
using Block = cpu::Block<kOperands>;

struct Squares {
    double params = 0.0, directions = 0.0;
};

// In as many sums as a vector has lanes, whatever the machine's is: the compiler may not reorder one sum by itself.
double sum_of_squares(const float* x, int64_t count) {
    constexpr int kSums = 16;
    float sums[kSums] = {};
    int64_t k = 0;
    for (; k + kSums <= count; k += kSums) {
        for (int lane = 0; lane < kSums; ++lane) sums[lane] = fmaf(x[k + lane], x[k + lane], sums[lane]);
    }
    for (; k < count; ++k) sums[k % kSums] = fmaf(x[k], x[k], sums[k % kSums]);
    double total = 0.0;
    for (const float sum : sums) total += sum;
    return total;
}

}  // namespace

// The sums are kept on this side.
int64_t lamb_workspace(const TensorGroups&) { return 0; }

const char* launch_lamb(const TensorGroups& groups, const LambNumbers& numbers, float* ratios, float*) {
    if (cpu::is_noop(groups)) return nullptr;
    const LambRule rule = numbers.rule();
    std::vector<Squares> sums(static_cast<size_t>(groups.count));
    std::vector<std::vector<Squares>> partial(static_cast<size_t>(groups.count));
    for (int64_t i = 0; i < groups.count; ++i) {
        partial[i].resize(static_cast<size_t>((groups.items[i].numel + cpu::kGrain - 1) / cpu::kGrain));
    }
    cpu::each_part(groups, cpu::kGrain, [&](int64_t tensor, int64_t begin, int64_t end) {
        const TensorGroup& group = groups.items[tensor];
        Squares& sum = partial[tensor][begin / cpu::kGrain];
        Block block;
        cpu::each_block(begin, end, [&](int64_t at, int64_t count) {
            block.read(group, at, count);
            block.each(count, [&](float* x) { x[1] = rule.accumulate(x); });
            sum.params += sum_of_squares(block.x[0], count);
            sum.directions += sum_of_squares(block.x[1], count);
            block.write(group, at, count, 2, 2);
            block.write(group, at, count, 3, 3);
        });
    });
    for (int64_t i = 0; i < groups.count; ++i) {
        for (const Squares& one : partial[i]) {
            sums[i].params += one.params;
            sums[i].directions += one.directions;
        }
        if (groups.items[i].numel > 0) ratios[i] = rule.ratio(sums[i].params, sums[i].directions);
    }
    cpu::each_part(groups, cpu::kGrain, [&](int64_t tensor, int64_t begin, int64_t end) {
        const TensorGroup& group = groups.items[tensor];
        Block block;
        cpu::each_block(begin, end, [&](int64_t at, int64_t count) {
            block.read(group, at, count);
            block.each(count, [&](float* x) { rule.descend(x, ratios[tensor]); });
            block.write_params(group, at, count);
        });
    });
    return nullptr;
}

}  // namespace opforge
