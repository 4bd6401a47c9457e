#pragma once

#include <cuda_runtime_api.h>

#include "params.hpp"

namespace xstage::moe::kernels {

/// One compiled kernel, each from a file of its own so that they compile beside each other.
struct Entry {
    cudaError_t (*prepare)(int* resident_ctas);
    cudaError_t (*launch)(const KernelParams& p, int ranks, cudaStream_t stream);
};
extern const Entry kBf16, kBf16Stamped, kFp8, kFp8Stamped;
extern const Entry kBf16Pairs, kBf16PairsStamped, kFp8Pairs, kFp8PairsStamped;

}  // namespace xstage::moe::kernels
