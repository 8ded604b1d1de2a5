#include "../cpu/update.h"
#include "../fused/kernels.h"

namespace opforge {

const char* launch_adam(const TensorGroups& groups, const AdamNumbers& numbers) {
    return cpu::launch_update<true>(groups, numbers.rule());
}

const char* launch_adam_rollback(const TensorGroups& groups, const AdamRollbackRule& rule) {
    return cpu::launch_update<false>(groups, rule);
}

}  // namespace opforge
