// What the memory gives to a kernel that only copies: the rate that the first all-to-all is held
// against.

#include "ulysses/send.cuh"

namespace xstage::ulysses::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 4;

__global__ void __launch_bounds__(kThreads)
    copy_units(uint4* __restrict__ to, const uint4* __restrict__ from, std::size_t units) {
    constexpr std::size_t kBlock = std::size_t{kThreads} * kInFlight;
    for (std::size_t at = blockIdx.x * kBlock + threadIdx.x; at < units; at += gridDim.x * kBlock) {
        uint4 unit[kInFlight];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k)
            if (at + k * kThreads < units) unit[k] = from[at + k * kThreads];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k)
            if (at + k * kThreads < units) to[at + k * kThreads] = unit[k];
    }
}

}  // namespace

cudaError_t plain_copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
    int device = 0, processors = 0, per_processor = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error =
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, copy_units, kThreads, 0);
    if (error != cudaSuccess) return error;
    copy_units<<<static_cast<unsigned>(processors * per_processor), kThreads, 0, stream>>>(
        static_cast<uint4*>(to), static_cast<const uint4*>(from), bytes / sizeof(uint4));
    return cudaGetLastError();
}

}  // namespace xstage::ulysses::kernels
