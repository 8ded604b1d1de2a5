#include "../cpu/update.h"
#include "../fused/kernels.h"

namespace opforge {

const char* launch_lion(const TensorGroups& groups, const LionNumbers& numbers) {
    const LionRule rule = numbers.rule();
    if (UsualLionRule::is_for(rule)) return cpu::launch_update<true>(groups, UsualLionRule(rule));
    return cpu::launch_update<true>(groups, rule);
}

}  // namespace opforge
