#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>

#include "xstage/attention.hpp"

namespace xstage::attention {

/// A map of `view` with `rows` rows for boxes of `box_rows` rows and `box_panels` panels of 64
/// columns. Throws Error (kBadInput) with `what` in it if the view cannot be mapped.
CUtensorMap encode_map(const char* what, const AttentionView& view, AttentionType type,
                       std::int64_t rows, int head_dim, std::int64_t heads, std::int64_t batches,
                       int box_rows, int box_panels);

}  // namespace xstage::attention
