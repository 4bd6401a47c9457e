#pragma once

#include <cstdint>

#include "instance.hpp"
#include "xstage/plan/attention_order.hpp"

namespace xstage::attention {

/// Start and end of a tile, when its groups wait for first keys and last stores, in keys.
inline constexpr double kTileOverheadKeys = 160;

/// A causal problem as the tiles of one instance see it.
struct CausalTiles {
    int rows, keys;  ///< of a tile and of a key block
    std::int64_t q_rows, kv_rows;

    std::int32_t count() const { return static_cast<std::int32_t>((q_rows + rows - 1) / rows); }
    /// Rows times keys that tile number `tile` takes, whole key blocks of each 64 rows.
    double cost(std::int32_t tile) const;
};

/// The largest cost that falls to one of `workers` CTAs when `grid` is dealt out.
double longest_share(const plan::AttentionGrid& grid, const CausalTiles& tiles, int workers);

/// Heads (of all batches) whose tiles are dealt out together, longest first: the number that evens
/// out the CTAs best, as few of equally good ones. `in_l2` is how many heads' keys and values the
/// L2 cache holds; more are allowed as long as several CTAs share each head's.
std::int32_t causal_group(plan::AttentionGrid grid, const CausalTiles& tiles, int workers,
                          std::int64_t in_l2);

/// How many heads' keys and values may count on the L2 cache.
std::int64_t heads_in_l2(std::int64_t kv_rows, std::int64_t head_dim);

}  // namespace xstage::attention
