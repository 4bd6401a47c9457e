#pragma once

#include <cstdint>

#include "xstage/sparse/mask.hpp"

namespace xstage::sparse {

/// Of the attention that a mask is for.
struct MaskedShape {
    std::int64_t batches = 0, heads = 0, kv_heads = 0, q_rows = 0, kv_rows = 0;
    bool all_ranks = false;  ///< the rows are those of all ranks together
};

/// Throws Error (kBadInput) that says what does not fit.
void require_fit(const BlockMask& mask, const MaskedShape& shape);

}  // namespace xstage::sparse
