#pragma once

#include <cuda_runtime_api.h>

#include "params.hpp"

namespace xstage::moe::kernels {

/// One cooperative launch for `ranks` ranks of p.blocks CTAs each.
cudaError_t launch_bf16(const KernelParams& p, int ranks, cudaStream_t stream);
cudaError_t launch_fp8(const KernelParams& p, int ranks, cudaStream_t stream);

/// Loads the kernel of this type now and says how many CTAs an SM of the current device holds.
cudaError_t preload(Type type, int* ctas_per_processor);

/// Rows of 128 bytes for one stage: `rows` of `columns` elements, boxes of `box_rows`. Throws Error
/// (kBadInput) when the driver refuses.
CUtensorMap encode_map(const char* what, const void* data, Type type, std::int64_t rows,
                       std::int64_t columns, int box_rows);

}  // namespace xstage::moe::kernels
