#pragma once

#include "entry.hpp"
#include "kernel.cuh"

namespace xstage::moe::kernels {

template <class C>
cudaError_t prepare(int* ctas_per_processor) {
    auto* const kernel = &moe_kernel<C>;
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSharedBytes));
    if (error != cudaSuccess) return error;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(ctas_per_processor, kernel, kThreads,
                                                         kSharedBytes);
}

template <class C>
cudaError_t launch(const KernelParams& p, int ranks, cudaStream_t stream) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(ranks * p.blocks));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kSharedBytes;
    config.stream = stream;
    // CTAs wait for each other: all are resident or the launch fails.
    cudaLaunchAttribute cooperative{};
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    config.attrs = &cooperative;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, &moe_kernel<C>, p);
}

template <class C>
constexpr Entry entry() {
    return {&prepare<C>, &launch<C>};
}

}  // namespace xstage::moe::kernels
