#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace xstage::sparse {

/// Heads by rank. `bound` is a proven lower bound of the largest load: equal to `largest` where the
/// placement is proven the best.
struct Placement {
    std::vector<std::int32_t> rank_of;  ///< per head
    double largest = 0, mean = 0, bound = 0;

    bool proven() const { return largest <= bound * (1 + 1e-12); }
};

/// Places heads of unequal work (kept pairs, say) on ranks with equally many heads each, so that
/// the rank with most to do has least. Greedy, longest first, then exchanges of pairs; for few
/// heads a branch-and-bound search, which is cut off after `search_nodes`. Masks are known ahead,
/// so this costs nothing at run time. Throws Error (kBadInput) if ranks do not divide the heads, or
/// a load is negative or not finite. Problem and measure (largest over mean load): db-SP, arXiv
/// 2511.23113.
Placement place_heads(std::span<const double> loads, int ranks,
                      std::int64_t search_nodes = 1000000);

}  // namespace xstage::sparse
