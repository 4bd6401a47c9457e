#pragma once

#include <cuda_runtime_api.h>

#include "ops/ulysses/mover.hpp"

namespace xstage::ulysses::kernels {

/// Rows to places on peers (or here). Reads every byte once, in the widest accesses that all
/// addresses allow; allocates nothing and captures into graphs.
cudaError_t scatter_rows(const RowScatter& scatter, cudaStream_t stream);

/// Heads to their owners, normalised and rotated on the way.
cudaError_t send_heads(const HeadScatter& scatter, cudaStream_t stream);

/// 1 / root mean square of every row over all heads, into scatter.rstd.
cudaError_t row_rstd(const HeadScatter& scatter, cudaStream_t stream);

/// Loads every kernel now, since a lazy load beside a waiting kernel would hang both.
cudaError_t preload();

}  // namespace xstage::ulysses::kernels
