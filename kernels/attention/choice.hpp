#pragma once

#include <cstdint>
#include <string>

#include "instance.hpp"

namespace xstage {

struct AttentionTypeAndShape {
    AttentionType type;
    int head_dim;
    attention::MaskKind mask;
    std::int64_t q_rows, kv_rows;
    std::int64_t sequences;  ///< heads * batches
};

namespace attention {

/// Relative time of a launch on `sms` SMs: waves of tiles times the time of one tile. A pure
/// function of shape and instance; the rates behind it were measured (bench/notes/attention.md).
double predicted_cost(const Instance& instance, const AttentionTypeAndShape& shape, int sms);

/// The instance called `name`, or if that is empty the one of least predicted cost. Throws Error
/// (kBadInput) if there is none for this type, head size and mask.
const Instance& choose(const AttentionTypeAndShape& shape, int sms, const std::string& name);

}  // namespace attention
}  // namespace xstage
