#pragma once

#include <cuda_runtime_api.h>

#include "params.hpp"

namespace xstage::moe::kernels {

/// One compiled kernel, each from a file of its own so that they compile beside each other.
struct Entry {
    cudaError_t (*prepare)(int* ctas_per_processor);
    cudaError_t (*launch)(const KernelParams& p, int ranks, cudaStream_t stream);
};
extern const Entry kBf16, kBf16Stamped, kFp8, kFp8Stamped;

}  // namespace xstage::moe::kernels
