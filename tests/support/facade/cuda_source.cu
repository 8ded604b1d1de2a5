// What public sources in CUDA use of torch's headers. It is compiled, and not run, where there is no GPU.
#include <ATen/ceil_div.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/detail/KernelUtils.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAMathCompat.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>
#include <ATen/cuda/Atomic.cuh>
#include <ATen/cuda/DeviceUtils.cuh>
#include <ATen/native/cuda/KernelUtils.cuh>

template <typename scalar_t>
__global__ void scale(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, float by, int64_t n) {
    CUDA_KERNEL_LOOP(i, n) {
        using compute_t = at::opmath_type<scalar_t>;
        y[i] = static_cast<scalar_t>(static_cast<compute_t>(x[i]) * static_cast<compute_t>(by));
    }
}
template <typename scalar_t>
__global__ void row_sums(const at::PackedTensorAccessor32<scalar_t, 2, at::RestrictPtrTraits> x,
                         at::PackedTensorAccessor32<scalar_t, 1, at::RestrictPtrTraits> sums) {
    const int row = at::ceil_div(static_cast<int>(blockIdx.x), 1);
    scalar_t sum = 0;
    for (int column = threadIdx.x; column < x.size(1); column += blockDim.x) {
        sum += x[row][column];
    }
    for (int offset = C10_WARP_SIZE / 2; offset > 0; offset /= 2) {
        sum += WARP_SHFL_DOWN(static_cast<float>(sum), offset);
    }
    if (threadIdx.x % C10_WARP_SIZE == 0) {
        gpuAtomicAdd(&sums[row], sum);
    }
}
__global__ void halves(at::Half* a, at::BFloat16* b, double* c) {
    atomicAdd(a, at::Half(1.0f));
    gpuAtomicAddNoReturn(b, at::BFloat16(2.0f));
    gpuAtomicAdd(c, c10::cuda::compat::exp(1.0));
    at::native::fastAtomicAdd(a, 0, 2, at::Half(1.0f), true);
    at::native::fastAtomicAdd(b, int64_t{0}, int64_t{2}, at::BFloat16(1.0f), true);
    at::native::fastAtomicAdd(c, 0, 2, 1.0, false);
}

torch::Tensor scaled(torch::Tensor x, double by) {
    TORCH_CHECK(x.is_cuda(), "expected a tensor on a CUDA device, got ", x.device());
    const at::cuda::OptionalCUDAGuard guard(at::device_of(x));
    auto y = torch::empty_like(x);
    auto stream = at::cuda::getCurrentCUDAStream(x.get_device());
    const int threads = std::min<int>(at::cuda::getCurrentDeviceProperties()->maxThreadsPerBlock, 256);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "scaled", [&] {
        scale<scalar_t><<<at::cuda::detail::GET_BLOCKS(x.numel(), threads), threads, 0, stream>>>(
            x.data_ptr<scalar_t>(), y.mutable_data_ptr<scalar_t>(), static_cast<float>(by), x.numel());
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
torch::Tensor sums(torch::Tensor x) {
    const c10::cuda::CUDAGuard guard(x.device());
    auto r = torch::zeros({x.size(0)}, x.options());
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "sums", [&] {
        row_sums<scalar_t><<<x.size(0), 32, 0, c10::cuda::getCurrentCUDAStream().stream()>>>(
            x.packed_accessor32<scalar_t, 2, at::RestrictPtrTraits>(),
            r.packed_accessor32<scalar_t, 1, at::RestrictPtrTraits>());
    });
    AT_CUDA_CHECK(cudaGetLastError());
    return r;
}
void host() {
    c10::cuda::MaybeSetDevice(0);
    c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(true);
    c10::cuda::CUDAStreamGuard guard(stream);
    at::cuda::CUDAEvent before(cudaEventDefault), after(cudaEventDefault);
    before.record(stream);
    auto memory = c10::cuda::CUDACachingAllocator::get()->allocate(16);
    C10_CUDA_CHECK(cudaMemsetAsync(memory.get(), 0, 16, stream));
    after.record(stream);
    after.block(at::cuda::getDefaultCUDAStream());
    after.synchronize();
    TORCH_CHECK(before.elapsed_time(after) >= 0 && memory && memory.device().is_cuda());
    C10_CUDA_CHECK(cudaStreamSynchronize(stream));
    at::cuda::setCurrentCUDAStream(at::cuda::getDefaultCUDAStream());
    TORCH_CHECK(at::cuda::warp_size() == 32 && at::cuda::ATenCeilDiv(5, 2) == 3 && c10::cuda::device_count() > 0);
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("scaled", &scaled);
    m.def("sums", &sums);
    m.def("host", &host);
}
