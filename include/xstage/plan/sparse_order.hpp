#pragma once

// Which tiles of a masked attention each CTA computes, and in which order. The kernel reads the
// table this function makes, the tests prove it: there is no second copy of the order.

#include <cstdint>
#include <vector>

#include "xstage/plan/attention_order.hpp"

namespace xstage::sparse {
class BlockMask;
}

namespace xstage::plan {

/// One query block of a mask; `tile` is its number in the head.
struct alignas(16) SparseTile : AttentionTile {
    std::int32_t keys = 0;  ///< kept: whole blocks, but for the last key block
};

/// The tiles of one launch by worker: worker w takes tiles [begin[w], begin[w+1]) in this order.
struct SparseSchedule {
    std::vector<std::int32_t> begin;
    std::vector<SparseTile> tiles;
    double longest = 0, mean = 0;  ///< load of a worker, in keys
};

/// Heads that share keys stay together, so that K and V stay in L2, and those with most work come
/// first; inside a head the longest tiles go first, each to the worker that has least to do. A mask
/// with fewer heads than `heads` holds for consecutive heads alike, one with one batch for all.
/// Throws Error (kBadInput) if its heads do not divide the heads, or its batches are neither 1 nor
/// all.
SparseSchedule sparse_schedule(const sparse::BlockMask& mask, std::int64_t batches,
                               std::int64_t heads, std::int64_t kv_heads, int workers);

}  // namespace xstage::plan
