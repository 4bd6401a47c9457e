#pragma once

#include <cuda_runtime_api.h>

#include "params.hpp"

namespace xstage::moe::kernels {

/// Which kernel.
struct Variant {
    Type type;
    bool stamped;       ///< writes stamps of Linear-2's stores
    std::int32_t ctas;  ///< plan::MoeOrder::ctas
};

/// One cooperative launch for `ranks` ranks of p.blocks CTAs each, a multiple of Variant::ctas.
cudaError_t launch(const Variant& variant, const KernelParams& p, int ranks, cudaStream_t stream);

/// Loads the kernel now and says how many CTAs the current device holds at a time.
cudaError_t preload(const Variant& variant, int* resident_ctas);

/// Rows of 128 bytes for one stage: `rows` of `columns` elements, boxes of `box_rows`. Throws Error
/// (kBadInput) when the driver refuses.
CUtensorMap encode_map(const char* what, const void* data, Type type, std::int64_t rows,
                       std::int64_t columns, int box_rows);

}  // namespace xstage::moe::kernels
