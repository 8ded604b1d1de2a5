#include "../fused/kernels.h"
#include "multi_tensor.h"

namespace opforge {

const char* launch_adam(const TensorGroups& groups, const AdamNumbers& numbers) {
    return cuda::launch_update(groups, numbers);
}

}  // namespace opforge
