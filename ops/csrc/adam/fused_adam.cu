#include "../cuda/multi_tensor.h"
#include "../fused/kernels.h"

namespace opforge {

const char* launch_adam(const TensorGroups& groups, const AdamNumbers& numbers) {
    return cuda::launch_update(groups, numbers);
}

}  // namespace opforge
