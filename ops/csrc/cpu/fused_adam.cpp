#include "../fused/kernels.h"
#include "fused_multi_tensor.h"

namespace opforge {

const char* launch_adam(const TensorGroups& groups, const AdamNumbers& numbers) {
    return cpu::launch_update(groups, numbers);
}

}  // namespace opforge
