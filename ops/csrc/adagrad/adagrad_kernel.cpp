#include "../cpu/update.h"
#include "../fused/kernels.h"

namespace opforge {

const char* launch_adagrad(const TensorGroups& groups, const AdagradRule& rule) {
    return cpu::launch_update<true>(groups, rule);
}

}  // namespace opforge
