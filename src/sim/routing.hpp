#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace xstage::sim {

/// How many rows each expert gets from each GPU's tokens.
struct Routing {
    int experts = 0;  ///< over all GPUs; expert e lives on GPU e / (experts / gpus)
    int gpus = 0;
    std::vector<std::int32_t> rows;  ///< [expert][source GPU]

    std::int32_t at(int expert, int source) const {
        return rows[static_cast<std::size_t>(expert) * static_cast<std::size_t>(gpus) +
                    static_cast<std::size_t>(source)];
    }
    std::int32_t total(int expert) const;
};

struct RoutingSeed {
    int experts = 0, gpus = 0, top_k = 0;
    std::vector<std::int64_t> tokens;  ///< per GPU
    std::uint64_t seed = 0;
    /// Popularity of experts: 0 uniform, else the exponent of a Zipf law over a seeded permutation.
    double skew = 0;
    /// Share of the routes that go to experts of other GPUs; negative: whatever the popularity
    /// gives.
    double remote_share = -1;
};

/// Distinct experts per token, drawn by popularity. The same seed gives the same routing
/// everywhere.
Routing seeded_routing(const RoutingSeed& how);

/// Every expert gets the same number of rows from every GPU, remainders dealt out in turn.
Routing balanced_routing(int experts, int gpus, int top_k, std::int64_t tokens);

/// A file of real expert ids: {"experts": E, "ids": [[[e, e, ..], ..tokens], ..GPUs]}; a negative
/// id is a masked route. Throws kBadInput with the file and the JSON path.
Routing read_routing(const std::string& path, int experts, int gpus);

}  // namespace xstage::sim
