#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xstage/moe/plan.hpp"

namespace xstage::moe {

/// Where the benchmark's tokens go. Every token's experts are distinct.
enum class Routing : std::uint8_t {
    kBalanced,  ///< drawn evenly
    kHot,       ///< a tenth of the routes goes to one expert
    kAway,      ///< 7/8 of the routes leave their rank, as with eight ranks and kBalanced
    kHome,      ///< none leaves its rank: what the same work costs without the link
    kRank0,     ///< 80% of the routes go to rank 0
    kMasked,    ///< as kBalanced, 30% of the slots without a route
};
inline constexpr Routing kRoutings[] = {Routing::kBalanced, Routing::kHot,   Routing::kAway,
                                        Routing::kHome,     Routing::kRank0, Routing::kMasked};
std::string name_of(Routing routing);
/// Whether it means anything only where there are at least two ranks.
constexpr bool needs_peers(Routing routing) {
    return routing == Routing::kAway || routing == Routing::kRank0;
}

/// Routes [tokens][top_k] of one rank's tokens; the same everywhere for the same seed.
std::vector<std::int32_t> routes_of(const Problem& problem, int tokens, int rank, Routing routing,
                                    unsigned seed);

/// What a routing makes of a rank's work: by routes, without a shared expert.
struct Load {
    std::int64_t routes = 0;  ///< to this rank's experts
    std::int64_t blocks = 0, experts_hit = 0;
    std::int64_t most = 0;  ///< rows of one expert
    std::int64_t away = 0;  ///< of this rank's tokens' routes, those to other ranks
};
/// Of every rank, from all ranks' routes.
std::vector<Load> loads_of(const Problem& problem,
                           const std::vector<std::vector<std::int32_t>>& routes);

}  // namespace xstage::moe
