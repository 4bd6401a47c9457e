#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace xstage::probe {

/// The values of an axis, rising and without doubles. Grammar, items joined by commas:
///     4096        one value; K, M and G mean 2^10, 2^20 and 2^30
///     1K:64K:x2   from, to (included if hit), times 2 each step; any factor above 1, also 1.5
///     0:96:+8     from, to, plus 8 each step
/// `name` is the axis for messages. Throws kBadInput for anything else, for negative values, for
/// more than 10 000 values and for overflow.
std::vector<std::int64_t> parse_axis(std::string_view text, std::string_view name);

/// One size or count with an optional suffix, by the same rules.
std::int64_t parse_size(std::string_view text, std::string_view name);

}  // namespace xstage::probe
