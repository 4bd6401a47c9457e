#include "fill.hpp"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

namespace xstage::moe::kernels {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kBlocks = 1056;

/// In [0, 1), from the element's number (finaliser of MurmurHash3).
__device__ __forceinline__ float uniform(std::uint64_t index, std::uint32_t seed) {
    auto h = static_cast<std::uint32_t>(index ^ index >> 32) * 0x9e3779b1U + seed;
    h = (h ^ h >> 16) * 0x85ebca6bU;
    h = (h ^ h >> 13) * 0xc2b2ae35U;
    return static_cast<float>((h ^ h >> 16) >> 8) * (1.0F / 16777216.0F);
}

__global__ void __launch_bounds__(kThreads)
    fill(void* to, std::int64_t count, Type type, float low, float high, std::uint32_t seed) {
    const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
    for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
        const float value = low + (high - low) * uniform(static_cast<std::uint64_t>(i), seed);
        if (type == Type::kFp8) {
            static_cast<__nv_fp8_e4m3*>(to)[i] = __nv_fp8_e4m3(value);
        } else {
            static_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16(value);
        }
    }
}

__global__ void __launch_bounds__(kThreads)
    fill_float(float* to, std::int64_t count, float low, float high, std::uint32_t seed) {
    const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
    for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step)
        to[i] = low + (high - low) * uniform(static_cast<std::uint64_t>(i), seed);
}

__global__ void __launch_bounds__(kThreads) compare(const std::uint16_t* a, const std::uint16_t* b,
                                                    std::int64_t words, unsigned long long* count) {
    const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
    unsigned long long mine = 0;
    for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += step)
        mine += a[i] != b[i] ? 1 : 0;
    if (mine != 0) atomicAdd(count, mine);
}

}  // namespace

cudaError_t count_differences(const std::uint16_t* a, const std::uint16_t* b, std::int64_t words,
                              unsigned long long* count, cudaStream_t stream) {
    compare<<<kBlocks, kThreads, 0, stream>>>(a, b, words, count);
    return cudaGetLastError();
}

cudaError_t fill_random(void* to, std::int64_t count, Type type, float size, std::uint32_t seed,
                        cudaStream_t stream) {
    const float most = type == Type::kFp8 ? 64.0F : size;
    fill<<<kBlocks, kThreads, 0, stream>>>(to, count, type, -most, most, seed);
    return cudaGetLastError();
}

cudaError_t fill_floats(float* to, std::int64_t count, float low, float high, std::uint32_t seed,
                        cudaStream_t stream) {
    fill_float<<<kBlocks, kThreads, 0, stream>>>(to, count, low, high, seed);
    return cudaGetLastError();
}

}  // namespace xstage::moe::kernels
