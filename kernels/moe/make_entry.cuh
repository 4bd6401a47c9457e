#pragma once

#include "entry.hpp"
#include "kernel.cuh"

namespace xstage::moe::kernels {

template <class C>
cudaLaunchConfig_t launch_config(int ctas, cudaLaunchAttribute (&attributes)[2]) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(ctas));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kSharedBytes;
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = C::kCtas;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    // CTAs wait for each other: all are resident or the launch fails.
    attributes[1].id = cudaLaunchAttributeCooperative;
    attributes[1].val.cooperative = 1;
    config.attrs = attributes;
    config.numAttrs = 2;
    return config;
}

template <class C>
cudaError_t prepare(int* resident_ctas) {
    auto* const kernel = &moe_kernel<C>;
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSharedBytes));
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = launch_config<C>(C::kCtas, attributes);
    config.numAttrs = 1;
    int clusters = 0;
    const cudaError_t found = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    *resident_ctas = clusters * C::kCtas;
    return found;
}

template <class C>
cudaError_t launch(const KernelParams& p, int ranks, cudaStream_t stream) {
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = launch_config<C>(ranks * p.blocks, attributes);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, &moe_kernel<C>, p);
}

template <class C>
constexpr Entry entry() {
    return {&prepare<C>, &launch<C>};
}

}  // namespace xstage::moe::kernels
