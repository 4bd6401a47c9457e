#pragma once

#include <cuda.h>

#include <cstdint>

#include "xstage/plan/attention_order.hpp"
#include "xstage/plan/sparse_order.hpp"

namespace xstage::attention {

/// Rows of the output that one destination takes: [row_begin[d], row_begin[d+1]) of every head.
struct Destinations {
    std::int32_t count;
    std::int32_t row_begin[plan::kMaxDestinations + 1];
};

/// Arguments of the kernel, passed by value: tensor maps must lie in parameter or constant memory.
/// Dimensions of every map, fastest first: 64 columns, rows, panels of 64 columns, heads, batches.
struct KernelParams {
    CUtensorMap q, k, v;
    CUtensorMap o[plan::kMaxDestinations];  ///< rows counted from the destination's first
    /// For the 64 rows that straddle a destination's first row: a box of just those that are its
    /// own. A store must not start at a negative row, so the engine cannot clip this side.
    CUtensorMap o_head[plan::kMaxDestinations];
    Destinations destinations;
    float* lse;  ///< [batch][head][row], natural logarithm; null if not wanted
    std::int64_t lse_stride_batch, lse_stride_head;
    const std::int32_t* key_lengths;  ///< per batch, or null
    std::int32_t q_rows, kv_rows;
    std::int32_t heads_per_kv_head;
    std::int32_t kv_batch_step;  ///< 0 if all batches share one K and V
    float scale_log2;            ///< softmax scale * log2(e), positive
    float rescale_above;         ///< 0 to 8, see AttentionArguments
    plan::AttentionGrid grid;
};

/// What a masked launch needs besides. A type of its own, so that the others' arguments stay short.
struct BlockParams : KernelParams {
    const std::uint32_t* bits;  ///< [row][words], see sparse::BlockMask
    std::int32_t words, q_blocks;
    std::int32_t mask_heads, heads_per_mask_head;
    std::int32_t mask_batch_step;  ///< 0 if one mask holds for all batches
    const plan::SparseTile* tiles;
    const std::int32_t* tile_begin;  ///< per CTA and one more
};

}  // namespace xstage::attention
