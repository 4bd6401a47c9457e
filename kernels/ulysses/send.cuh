#pragma once

#include <cuda_runtime_api.h>

#include "ops/ulysses/mover.hpp"

namespace xstage::ulysses::kernels {

/// Rows to places on peers (or here). Reads every byte once, in the widest accesses that all
/// addresses allow; allocates nothing and captures into graphs.
cudaError_t scatter_rows(const RowScatter& scatter, cudaStream_t stream);

/// Heads to their owners, normalised and rotated on the way: one launch for all parts that 16-byte
/// accesses fit. Parts share dtype, head_dim and blocks.
cudaError_t send_heads(const HeadExchange& all, cudaStream_t stream);

/// 1 / root mean square of every row over all heads, into the parts' rstd, for those with such a
/// norm.
cudaError_t row_rstd(const HeadExchange& all, cudaStream_t stream);

/// A plain copy in 16-byte accesses, for benchmarks: `bytes` is a multiple of 16.
cudaError_t plain_copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream);

/// Loads every kernel now, since a lazy load beside a waiting kernel would hang both.
cudaError_t preload();

}  // namespace xstage::ulysses::kernels
